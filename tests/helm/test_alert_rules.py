"""The chart's alerts: what is rendered is what promtool plays, and the runbooks fit the chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.leaves import Values, over
from tests.helm.rendering import RenderError, render, server, the
from tests.observability import expressions
from tests.observability.cases import graphs, pods, readers
from tests.observability.cases.case import OF_NAMESPACE, Case
from tests.observability.expressions import RULES
from tests.observability.promtool import play
from tests.project.tree import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks.md"
ON = {"monitoring": {"rules": {"enabled": True}, "podMonitor": {"enabled": True}}}
HOURS = {"autoscaling": {"mode": "keda", "workHours": {"enabled": True}}}
ANY_NAMESPACE = 'namespace=~".*"'
# Two look at days of series, which takes long; one says {} where it knows no namespace, and has cases of its own.
APART = {"SoloistFirstTokenBurnFast", "SoloistFirstTokenBurnSlow", "SoloistAbsent"}
FIRING = [
    case for case in (*readers.CASES, *graphs.CASES, *pods.CASES) if case.fires is not None and case.alert not in APART
]


def groups(namespace: str = "soloist", **values: Any) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule."""
    rendered = the(render(over(ON, values), namespace=namespace), "PrometheusRule")
    found: list[dict[str, Any]] = rendered["spec"]["groups"]
    return found


def by_name(values: Values) -> dict[str, dict[str, Any]]:
    """Its rules."""
    return {rule.get("alert") or rule["record"]: rule for group in groups(**values) for rule in group["rules"]}


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
    """With the default values, so that promtool plays what most have: a `for` that differs goes into the file."""
    text = RULES.read_text(encoding="utf-8")
    assert groups("chat") == yaml.safe_load(text.replace(ANY_NAMESPACE, 'namespace="chat"'))["groups"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, True),
        ({"replicas": 0}, False),
        (over(HOURS, {"placement": {"capacity": "spot"}}), False),
        (over(HOURS, {"placement": {"capacity": "spot", "onDemandFloor": 1}}), True),
        ({"replicas": 0, "placement": {"capacity": "spot", "onDemandFloor": 1}}, True),
        ({"replicas": 0, "autoscaling": {"mode": "hpa"}}, True),
    ],
)
def test_no_pod_at_all_is_told_of_unless_it_is_meant(values: Values, told: bool) -> None:
    file = {rule.where.removeprefix("rule ") for rule in expressions.of_rules()}
    assert set(by_name(values)) == (file if told else file - {"SoloistAbsent"})


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"probes": {"startup": {"budgetSeconds": 3600}}}, {"SoloistStartStuck": 2700, "SoloistStillNotReady": 3699}),
        # A pod that went for the night is remembered for ten minutes.
        (
            {"variant": "cpu", "probes": {"startup": {"budgetSeconds": 60}}},
            {"SoloistStartStuck": 45, "SoloistStillNotReady": 759},
        ),
        (
            {"placement": {"capacity": "on-demand"}, "settings": {"grace_s": 600}},
            {"SoloistNoReadyPod": 699, "SoloistDrainStuck": 699, "SoloistStillNotReady": 1839},
        ),
    ],
)
def test_alerts_wait_for_as_long_as_pods_may_take(values: Values, seconds: dict[str, int]) -> None:
    rules = by_name(values)
    assert {name: rules[name]["for"] for name in seconds} == {name: f"{wait}s" for name, wait in seconds.items()}


@pytest.mark.parametrize(
    "base", ["https://forge.example/soloist/blob/main", "https://forge.example/soloist/blob/main/"]
)
def test_an_alert_links_to_its_runbook_where_it_is_known(base: str) -> None:
    told = {"monitoring": {"rules": {"runbookBase": base}}}
    alerts = {name: rule["annotations"] for name, rule in by_name(told).items() if "alert" in rule}
    assert alerts
    for name, told_of in alerts.items():
        assert told_of["runbook_url"] == f"https://forge.example/soloist/blob/main/docs/runbooks.md#{name.lower()}"


def test_where_it_is_not_known_no_alert_has_a_link_that_leads_nowhere() -> None:
    for rule in by_name({}).values():
        assert "runbook_url" not in rule.get("annotations", {})


def test_a_base_that_is_no_url_is_refused() -> None:
    with pytest.raises(RenderError, match="runbookBase"):
        groups(**over(ON, {"monitoring": {"rules": {"runbookBase": "docs/"}}}))


def test_a_release_hears_of_its_absent_pods_for_as_long_as_they_are(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    other = {pods.readiness("serving", namespace="other"): "1x300"}
    cases = [
        Case("SoloistAbsent", "no pod ever came", other, 15, OF_NAMESPACE),
        Case("SoloistAbsent", "hours", {pods.readiness("serving"): "1x5 stale", **other}, 240, OF_NAMESPACE),
        Case("SoloistAbsent", "it loads", {pods.readiness("serving"): "0x30"}, 15),
    ]
    play(require_tool("promtool"), written(groups("n"), tmp_path), cases, tmp_path)


def test_what_is_rendered_fires_where_the_file_does(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """One firing case of each alert; that all else is the same is seen above."""
    one_each = list({case.alert: case for case in FIRING}.values())
    play(require_tool("promtool"), written(groups("n"), tmp_path), one_each, tmp_path)


def test_a_release_hears_nothing_of_another_namespace(require_tool: Callable[[str], str], tmp_path: Path) -> None:
    """No alert of a release in `other` fires for what happens in `n`."""
    unheard = [replace(case, fires=None, says=None) for case in FIRING]
    play(require_tool("promtool"), written(groups("other"), tmp_path), unheard, tmp_path)


def test_the_runbook_on_cpu_says_what_a_user_of_the_chart_can_do() -> None:
    resources = server(render())["resources"]
    [section] = re.findall(r"^## SoloistHostStalls\n(.*?)^## ", RUNBOOKS.read_text("utf-8"), re.MULTILINE | re.DOTALL)

    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert "Raise `resources.cpu`" in section
    assert "set no limit" not in section
