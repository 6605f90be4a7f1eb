"""Tables of the Terraform pages, made of what the code says: `python -m tests.terraform.tables` writes them anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from terraform.bootstrap.charts import RELEASES

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "terraform" / "cluster"

_BLOCK = r'(?ms)^{kind} "(\w+)" \{{\n(.*?)^\}}'


def _blocks(file: str, kind: str) -> list[tuple[str, str]]:
    return re.findall(_BLOCK.format(kind=kind), (CLUSTER / file).read_text(encoding="utf-8"))


def _description(body: str) -> str:
    found = re.search(r'(?m)^  description = "(.*)"$', body)
    assert found, body
    return found[1].replace('\\"', '"').replace("|", "\\|")


def inputs() -> str:
    """Each variable of terraform/cluster, its default and what it says of itself."""
    lines = ["| input | default | |", "|---|---|---|"]
    for name, body in _blocks("variables.tf", "variable"):
        default = re.search(r"(?m)^  default +=[ ](.*)$", body)
        lines.append(f"| `{name}` | {f'`{default[1]}`' if default else 'required'} | {_description(body)} |")
    return "\n".join(lines)


def outputs() -> str:
    """Each output of terraform/cluster and what it says of itself."""
    rows = [f"| `{name}` | {_description(body)} |" for name, body in _blocks("outputs.tf", "output")]
    return "\n".join(["| output | |", "|---|---|", *rows])


def releases() -> str:
    """What the bootstrap installs, and in which version."""
    rows = [f"| `{each.name}` | `{each.namespace}` | {each.version or 'helm/' + each.name} |" for each in RELEASES]
    return "\n".join(["| release | namespace | version |", "|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {"inputs": inputs, "outputs": outputs, "releases": releases}
PAGES = (CLUSTER / "README.md", ROOT / "docs" / "terraform.md")


def with_tables(text: str) -> str:
    """The page with each of its tables as the code has it now."""
    for name, table in TABLES.items():
        marked = rf"(?s)<!-- {name} -->\n.*?<!-- /{name} -->"
        text = re.sub(marked, lambda _, n=name, t=table: f"<!-- {n} -->\n{t()}\n<!-- /{n} -->", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
