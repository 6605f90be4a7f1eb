"""What holds for every dashboard and rule as they lie in the chart, without a Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from tests.observability import expressions
from tests.observability.expressions import DASHBOARDS, dashboard, panels

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks.md"
ALERTS = [rule for rule in expressions.rules() if "alert" in rule]
ALL = [*expressions.of_dashboards(), *expressions.of_rules()]
# Grafana's variables are no PromQL.
AS_PROMQL = {"namespace": "n", "model": "m", "pod": "p", "__rate_interval": "1m", "__range": "1h"}


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def test_there_are_two() -> None:
    assert [path.stem for path in DASHBOARDS] == ["what-readers-feel", "what-the-gpu-does"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_met_05_a_datasource_is_only_ever_the_variable(path: Path) -> None:
    page = dashboard(path)
    assert page["templating"]["list"][0]["type"] == "datasource"
    sources = [node["datasource"] for node in nodes(page) if "datasource" in node]

    assert sources
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    own = [node for node in nodes(page) if "uid" in node and node.get("type") != "prometheus"]
    assert own == [page]  # its own address, and no other uid


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_says_what_is_normal_in_which_unit(path: Path) -> None:
    for panel in panels(dashboard(path)):
        title = panel["title"]
        assert len(panel["description"]) > 40, title
        if panel["type"] not in ("table", "heatmap"):  # columns and the axis have their own
            assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"], title


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_lie_beside_each_other_and_have_ids_of_their_own(path: Path) -> None:
    page = dashboard(path)
    cells: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        mine = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not mine & cells, panel["title"]
        cells |= mine
    titles = [panel["title"] for panel in panels(page)]
    assert len(titles) == len(set(titles))
    ids = [panel["id"] for panel in page["panels"]]
    assert len(ids) == len(set(ids))


def test_the_files_are_what_the_generator_says() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    from helm.dashboards.__main__ import files

    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make dashboards"


@pytest.mark.parametrize("expression", expressions.of_dashboards(), ids=lambda found: found.where)
def test_windows_follow_the_scrape_interval_and_the_time_shown(expression: expressions.Expression) -> None:
    windows = re.findall(r"\[([^\]]+)\]", expression.text)

    assert set(windows) <= ({"1m"} if ": mark " in expression.where else {"$__rate_interval", "$__range"})


@pytest.mark.parametrize("expression", ALL, ids=lambda found: found.where)
def test_quantiles_are_taken_of_sums_of_buckets(expression: expressions.Expression) -> None:
    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile":
            assert isinstance(node.args[1], promql_parser.AggregateExpr), expression.text
            assert node.args[1].modifier is not None
            assert "le" in node.args[1].modifier.labels, expression.text
        return True

    promql_parser.walk(promql_parser.parse(expression.filled(AS_PROMQL)), visit)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_says_who_what_and_where_to_read_on(alert: dict[str, Any]) -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    assert alert["annotations"]["runbook"] == f"docs/runbooks.md#{alert['alert'].lower()}"
    assert alert["alert"] in headings
    assert "namespace" in expressions.grouped_labels(alert["expr"])
    assert "$labels.namespace" in alert["annotations"]["summary"]


def test_every_section_of_the_runbooks_is_an_alert() -> None:
    text = RUNBOOKS.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]

    assert [section.split("\n", 1)[0] for section in sections] == [alert["alert"] for alert in ALERTS]
    for section in sections:
        marks = [section.find(f"**{word}**") for word in ("Means.", "Look.", "Do.")]
        assert marks[0] > 0, section[:40]
        assert all(before < after for before, after in pairwise(marks)), section[:40]
