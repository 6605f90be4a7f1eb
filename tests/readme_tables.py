"""The tables of README.md that come from the code. `python -m tests.readme_tables` writes them into the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from service.rpc.limits import CAPS
from service.settings import SETTINGS

README = Path(__file__).parent.parent / "README.md"


def caps_table() -> str:
    """Every size that a request controls, as Markdown."""
    rows = [f"| `{cap.field}` | {cap.limit:,} | {cap.unit} |" for cap in CAPS]
    return "\n".join(["| field | at most | |", "|---|---:|---|", *rows])


def settings_table() -> str:
    """Every setting of the server, as Markdown."""
    rows = [
        f"| `{setting.flag}` | `{setting.shown_default}` | {setting.help.replace('|', chr(92) + '|')} |"
        for setting in SETTINGS
    ]
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {"caps": caps_table, "settings": settings_table}


def with_tables(text: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """`text` with what stands between `<!-- NAME -->` and `<!-- /NAME -->` replaced by the table of that name.

    Raises:
        ValueError: a marker is missing.
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"the page has no pair of markers {begin.strip()} and {end.strip()}")
        text = f"{before}{begin}{table()}{end}{after}"
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
