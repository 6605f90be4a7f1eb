"""Each alert fires when it should, and not when it should not: promtool plays series into the rules as they lie."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.observability.cases import graphs, pods, readers
from tests.observability.expressions import RULES
from tests.observability.promtool import SEVERITY, play

CASES = (*readers.CASES, *graphs.CASES, *pods.CASES)


def test_every_alert_is_seen_to_fire_and_not_to_fire() -> None:
    firing = {case.alert for case in CASES if case.fires is not None}
    silent = {case.alert for case in CASES if case.fires is None}

    assert firing == silent == set(SEVERITY)


def test_the_rules_are_good(require_tool: Callable[[str], str]) -> None:
    checked = subprocess.run(
        [require_tool("promtool"), "check", "rules", str(RULES)],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", SEVERITY)
def test_an_alert(alert: str, require_tool: Callable[[str], str], tmp_path: Path) -> None:
    play(require_tool("promtool"), RULES, [case for case in CASES if case.alert == alert], tmp_path)
