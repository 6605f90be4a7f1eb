"""Tables of the Terraform pages, made of what the code says: `python -m tests.terraform.tables` writes them anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from terraform.bootstrap.charts import RELEASES

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "terraform" / "cluster"
PLATFORM = ROOT / "terraform" / "platform"

_BLOCK = r'(?ms)^{kind} "(\w+)" \{{\n(.*?)^\}}'


def _blocks(file: Path, kind: str) -> list[tuple[str, str]]:
    return re.findall(_BLOCK.format(kind=kind), file.read_text(encoding="utf-8"))


def _description(body: str) -> str:
    found = re.search(r'(?m)^  description = "(.*)"$', body)
    assert found, body
    return found[1].replace('\\"', '"').replace("|", "\\|")


def inputs(root: Path = CLUSTER) -> str:
    """Each variable of a root, its default and what it says of itself."""
    lines = ["| input | default | |", "|---|---|---|"]
    for name, body in _blocks(root / "variables.tf", "variable"):
        default = re.search(r"(?m)^  default +=[ ](.*)$", body)
        lines.append(f"| `{name}` | {f'`{default[1]}`' if default else 'required'} | {_description(body)} |")
    return "\n".join(lines)


def outputs(root: Path = CLUSTER) -> str:
    """Each output of a root and what it says of itself."""
    rows = [f"| `{name}` | {_description(body)} |" for name, body in _blocks(root / "outputs.tf", "output")]
    return "\n".join(["| output | |", "|---|---|", *rows])


def releases() -> str:
    """What the bootstrap installs, and in which version."""
    of_pods = "`namespace` of `platform`"
    rows = [
        f"| `{each.name}` | {f'`{each.namespace}`' if each.namespace else of_pods} "
        f"| {each.version or 'helm/' + each.name} |"
        for each in RELEASES
    ]
    return "\n".join(["| release | namespace | version |", "|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "inputs": inputs,
    "outputs": outputs,
    "releases": releases,
    "platform-inputs": lambda: inputs(PLATFORM),
    "platform-outputs": lambda: outputs(PLATFORM),
}
PAGES = (CLUSTER / "README.md", PLATFORM / "README.md", ROOT / "docs" / "terraform.md")


def with_tables(text: str) -> str:
    """The page with each of its tables as the code has it now."""
    for name, table in TABLES.items():
        marked = rf"(?s)<!-- {name} -->\n.*?<!-- /{name} -->"
        text = re.sub(marked, lambda _, n=name, t=table: f"<!-- {n} -->\n{t()}\n<!-- /{n} -->", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
