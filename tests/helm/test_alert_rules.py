"""The chart's alerts: what is rendered is what promtool plays, and the runbooks fit the chart."""

from __future__ import annotations

import re

import yaml

from tests.helm.rendering import CHART, render, server, the
from tests.project.tree import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks.md"


def test_rules_are_those_of_the_file() -> None:
    file = yaml.safe_load((CHART / "rules" / "soloist.yaml").read_text(encoding="utf-8"))
    rule = the(render({"monitoring": {"rules": {"enabled": True}}}), "PrometheusRule")
    assert rule["spec"]["groups"] == file["groups"]


def test_the_runbook_on_cpu_says_what_a_user_of_the_chart_can_do() -> None:
    resources = server(render())["resources"]
    [section] = re.findall(r"^## SoloistHostStalls\n(.*?)^## ", RUNBOOKS.read_text("utf-8"), re.MULTILINE | re.DOTALL)

    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert "Raise `resources.cpu`" in section
    assert "set no limit" not in section
