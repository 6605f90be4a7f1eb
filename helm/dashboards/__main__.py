"""Writes the dashboards into the chart; with `--check` says which are not fresh, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from helm.dashboards import device, readers

FOLDER = Path(__file__).parent.parent / "soloist" / "dashboards"


def files() -> dict[Path, str]:
    """Each file with the text that belongs into it."""
    return {
        FOLDER / "what-readers-feel.json": readers.page().as_json(),
        FOLDER / "what-the-gpu-does.json": device.page().as_json(),
    }


def main() -> int:
    """0, or 1 where `--check` finds a file that is not fresh."""
    stale = [
        (path, text) for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if sys.argv[1:] == ["--check"]:
        for path, _ in stale:
            print(f"{path.name} is not what helm/dashboards says; run: make dashboards", file=sys.stderr)
        return 1 if stale else 0
    if sys.argv[1:]:
        print("usage: python -m helm.dashboards [--check]", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
