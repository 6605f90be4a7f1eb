"""Makes the generated parts of both charts; with `--check` says which are not fresh, and changes nothing.

They are, of `soloist`: the lines of both `settings` in values.yaml, values.schema.json, facts.yaml and README.md. Those
of `soloist-nodes` are in helm.nodes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from helm import nodes, server_settings, values_comments
from helm.closed_schema import closed_schema
from helm.readme import readme

HERE = Path(__file__).parent
CHART = HERE / "soloist"


def values() -> str:
    """values.yaml with the settings of both programs in it."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    for part in server_settings.PARTS:
        name = ".".join(part.path)
        before, begin, rest = text.partition(f"# BEGIN {name}:")
        first, _, rest = rest.partition("\n")
        _, end, after = rest.partition(f"# END {name}\n")
        if not (begin and end):
            raise SystemExit(f"values.yaml has no pair of markers `# BEGIN {name}:` and `# END {name}`")
        indent = "  " * (len(part.path) - 1)
        text = f"{before}{begin}{first}\n{part.values_lines()}{indent}{end}{after}"
    return text


def schema() -> str:
    """values.schema.json."""
    # Through JSON, so that what an alias repeats becomes two objects.
    written = json.loads(json.dumps(yaml.safe_load((HERE / "soloist.schema.yaml").read_text(encoding="utf-8"))))
    for part in server_settings.PARTS:
        place = written
        for key in part.path[:-1]:
            place = place["properties"][key]
        place["properties"][part.path[-1]] = part.schema()
    return closed_schema("soloist", written, values_comments.read(values()))


def facts() -> str:
    """facts.yaml: what templates compute with, out of the server's code."""
    return (
        "# Made by `python -m helm.generate` out of the server's code.\n"
        "# The longest that the server takes to stop, beside propagation_s and grace_s, seconds.\n"
        f"stopSeconds: {server_settings.stop_seconds()}\n"
    )


def chart_readme() -> str:
    """README.md."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return readme(chart, values_comments.read(values()))


# values.yaml comes first: the others are made of it.
GENERATED: dict[str, Callable[[], str]] = {
    "values.yaml": values,
    "values.schema.json": schema,
    "facts.yaml": facts,
    "README.md": chart_readme,
}


def stale() -> list[str]:
    """The generated files that are not what they would be now."""
    return [
        name
        for name, make in GENERATED.items()
        if not (CHART / name).is_file() or (CHART / name).read_text(encoding="utf-8") != make()
    ]


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare. 1 when something is stale."""
    if arguments == ["--check"]:
        found = [f"soloist/{name}" for name in stale()] + [f"soloist-nodes/{name}" for name in nodes.stale()]
        for name in found:
            print(f"helm/{name} is not fresh; run: python -m helm.generate", file=sys.stderr)
        return 1 if found else 0
    for chart, generated in ((CHART, GENERATED), (nodes.CHART, nodes.GENERATED)):
        for name, make in generated.items():
            (chart / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
