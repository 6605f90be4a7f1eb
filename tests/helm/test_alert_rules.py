"""The chart's alerts: what is rendered is what promtool plays, and the runbooks fit the chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.helm.rendering import render, server, the
from tests.observability import expressions
from tests.observability.cases import graphs, pods, readers
from tests.observability.expressions import RULES
from tests.observability.promtool import play
from tests.project.tree import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks.md"
ON = {"monitoring": {"rules": {"enabled": True}}}
ANY_NAMESPACE = 'namespace=~".*"'
# Two look at days of series, which takes long; one says {} where it knows no namespace, and has cases of its own.
APART = {"SoloistFirstTokenBurnFast", "SoloistFirstTokenBurnSlow", "SoloistAbsent"}
FIRING = [
    case for case in (*readers.CASES, *graphs.CASES, *pods.CASES) if case.fires is not None and case.alert not in APART
]


def groups(namespace: str = "soloist", **values: Any) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule."""
    rendered = the(render(ON | values, namespace=namespace), "PrometheusRule")
    found: list[dict[str, Any]] = rendered["spec"]["groups"]
    return found


def written(found: list[dict[str, Any]], folder: Path) -> Path:
    """The groups as a file of rules."""
    file = folder / "rendered.yaml"
    file.write_text(yaml.safe_dump({"groups": found}), encoding="utf-8")
    return file


def test_every_series_of_the_file_is_chosen_by_namespace() -> None:
    for rule in expressions.of_rules():
        for selector in expressions.selectors(rule.text):
            first = selector.matchers.matchers[0]
            assert (first.name, str(first.op), first.value) == ("namespace", "MatchOp.Re", ".*"), rule.where


def test_rules_are_those_of_the_file_for_the_namespace_of_the_release() -> None:
    text = RULES.read_text(encoding="utf-8")
    assert groups("chat") == yaml.safe_load(text.replace(ANY_NAMESPACE, 'namespace="chat"'))["groups"]


def test_what_is_rendered_fires_where_the_file_does(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """One firing case of each alert; that all else is the same is seen above."""
    one_each = list({case.alert: case for case in FIRING}.values())
    play(require_tool("promtool"), written(groups("n"), tmp_path), one_each, tmp_path)


def test_a_release_hears_nothing_of_another_namespace(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """No alert of a release in `other` fires for what happens in `n`."""
    unheard = [replace(case, fires=None) for case in FIRING]
    play(require_tool("promtool"), written(groups("other"), tmp_path), unheard, tmp_path)


def test_the_runbook_on_cpu_says_what_a_user_of_the_chart_can_do() -> None:
    resources = server(render())["resources"]
    [section] = re.findall(r"^## SoloistHostStalls\n(.*?)^## ", RUNBOOKS.read_text("utf-8"), re.MULTILINE | re.DOTALL)

    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert "Raise `resources.cpu`" in section
    assert "set no limit" not in section
