"""Plays cases of alerts into a file of rules, with promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.observability.cases.case import Case
from tests.observability.expressions import rules

_ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
SEVERITY = {name: rule["labels"]["severity"] for name, rule in _ALERTS.items()}


def play(promtool: str, file: Path, cases: Sequence[Case], folder: Path) -> None:
    """All cases of one step at a time: starting promtool costs more than playing a case.

    Raises:
        AssertionError: promtool says which case went otherwise.
    """
    for step_min in sorted({case.step_min for case in cases}):
        played = {
            "rule_files": [str(file)],
            "evaluation_interval": f"{step_min}m",
            "tests": [_as_promtool(case) for case in cases if case.step_min == step_min],
        }
        written = folder / "cases.yaml"
        written.write_text(yaml.safe_dump(played))
        command = [promtool, "test", "rules", str(written)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

        assert ran.returncode == 0, ran.stdout + ran.stderr


def _as_promtool(case: Case) -> dict[str, Any]:
    """A case in the terms of promtool; its name comes with what went wrong."""
    wanted = {"alertname": case.alert, "alertstate": "firing", "severity": SEVERITY[case.alert], **(case.fires or {})}
    labels = ", ".join(f'{name}="{value}"' for name, value in wanted.items())
    said = [] if case.says is None else [_with_annotations(case)]
    return {
        "name": case.name,
        "alert_rule_test": said,
        "interval": f"{case.step_min}m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{case.alert}", alertstate="firing"}}',
                "eval_time": f"{case.at_min}m",
                "exp_samples": [] if case.fires is None else [{"labels": f"ALERTS{{{labels}}}", "value": 1}],
            }
        ],
    }


def _with_annotations(case: Case) -> dict[str, Any]:
    """The alert with all that it says; of the other annotations only labels are filled in."""
    labels = case.fires or {}
    annotations = dict(_ALERTS[case.alert]["annotations"])
    for name, value in labels.items():
        annotations["summary"] = annotations["summary"].replace(f"{{{{ $labels.{name} }}}}", value)
    return {
        "eval_time": f"{case.at_min}m",
        "alertname": case.alert,
        "exp_alerts": [
            {
                "exp_labels": {"severity": SEVERITY[case.alert], **labels},
                "exp_annotations": {**annotations, "description": case.says},
            }
        ],
    }
