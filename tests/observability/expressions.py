"""Every expression that Grafana or Prometheus will be asked, out of the files that are shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

CHART = Path(__file__).parents[2] / "helm" / "soloist"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
RULES = CHART / "rules" / "soloist.yaml"


@dataclass(frozen=True, slots=True)
class Expression:
    """One query. `where` names its panel, variable or rule; `instant`: asked for now, not for each step of a time."""

    where: str
    text: str
    instant: bool = True
    legend: str = ""

    def filled(self, values: dict[str, str]) -> str:
        """As Grafana would send it: variables replaced, the longest name first."""
        text = self.text
        for name in sorted(values, key=len, reverse=True):
            text = text.replace(f"${name}", values[name])
        assert "$" not in text, f"{self.where}: an unknown variable in {text}"
        return text


def dashboard(path: Path) -> dict[str, Any]:
    """A dashboard as data."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def panels(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels, rows opened and left out."""
    for panel in page["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def of_dashboards() -> list[Expression]:
    """Of every panel and every mark."""
    found = []
    for path in DASHBOARDS:
        page = dashboard(path)
        for panel in panels(page):
            for target in panel["targets"]:
                where = f"{path.stem}: {panel['title']} {target['refId']}"
                found.append(
                    Expression(where, target["expr"], bool(target.get("instant")), target.get("legendFormat", ""))
                )
        found += [
            Expression(f"{path.stem}: mark {mark['name']}", mark["expr"], instant=False)
            for mark in page["annotations"]["list"]
            if "expr" in mark
        ]
    return found


def choosers() -> list[tuple[Expression, str]]:
    """The series that each variable of a dashboard lists, with the label that it shows."""
    found = []
    for path in DASHBOARDS:
        for variable in dashboard(path)["templating"]["list"]:
            if variable["type"] == "query":
                query = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
                chosen, _, label = query.rpartition(", ")
                found.append((Expression(f"{path.stem}: ${variable['name']}", chosen), label))
    return found


def rules() -> list[dict[str, Any]]:
    """Alerts and recording rules, in order."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def of_rules() -> list[Expression]:
    """Of every alert and recording rule."""
    return [Expression(f"rule {rule.get('alert') or rule['record']}", rule["expr"]) for rule in rules()]


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The choices of series in an expression. One that cannot be read raises ValueError."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def grouped_labels(expression: str) -> set[str]:
    """Labels that it sums by or matches on."""
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> bool:
        modifier = getattr(node, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            found.update(getattr(part, "labels", None) or ())
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def compared(expression: str) -> list[str]:
    """What an alert compares with its thresholds; the inside of `absent`. These have values while nothing fires."""
    found: list[str] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.BinaryExpr) and str(node.op) in (">", "<", ">=", "<=", "==", "!="):
            found.append(node.lhs.prettify())
            return True
        if isinstance(node, promql_parser.Call) and node.func.name == "absent":
            found.append(node.args[0].prettify())
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found
