"""Each alert fires when it should, and not when it should not: promtool plays series into the rules as they lie.

Series are in promtool's notation, most with one value a minute: `0+5x60` grows by 5 for an hour, `_x5` is no
sample.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observability.expressions import RULES, rules

POD = 'namespace="n", pod="p"'
MODEL = 'namespace="n", pod="p", gen_ai_operation_name="chat", gen_ai_request_model="m"'
FIRST = "gen_ai_server_time_to_first_token_seconds"


@dataclass(frozen=True, slots=True)
class Case:
    """Series, and at which minute which alerts fire: none, or one with these labels.

    Attributes:
        alert: the alert that is looked at; others may fire beside it.
        step_min: between two values, and between two looks at the rules.
    """

    alert: str
    name: str
    series: Mapping[str, str]
    at_min: int
    fires: Mapping[str, str] | None = None
    step_min: int = 1


def first_tokens(slow: str, whole: str) -> dict[str, str]:
    """`whole` first tokens, as many within 2.5 s as `slow` is not."""
    return {f'{FIRST}_bucket{{{MODEL}, le="2.5"}}': slow, f"{FIRST}_count{{{MODEL}}}": whole}


def gaps(within_02: str, whole: str) -> dict[str, str]:
    """Tokens by the gap before them: within 0.2 s, and all of them within 0.3 s."""
    name = "soloist_inter_token_seconds"
    return {
        f'{name}_bucket{{{POD}, le="0.2"}}': within_02,
        f'{name}_bucket{{{POD}, le="0.3"}}': whole,
        f'{name}_bucket{{{POD}, le="+Inf"}}': whole,
        f"{name}_count{{{POD}}}": whole,
    }


def waits(within_5: str, whole: str) -> dict[str, str]:
    """Turns by their time in the queue: within 5 s, and all of them within 10 s."""
    name = "soloist_queue_seconds"
    return {
        f'{name}_bucket{{{POD}, le="5.0"}}': within_5,
        f'{name}_bucket{{{POD}, le="10.0"}}': whole,
        f'{name}_bucket{{{POD}, le="+Inf"}}': whole,
    }


def turns(refused: str, ended: str, reason: str = "queue_full") -> dict[str, str]:
    return {
        f'soloist_rejections_total{{{POD}, reason="{reason}"}}': refused,
        f'soloist_requests_total{{{POD}, reason="stop"}}': ended,
    }


def steps(eager: str, whole: str, reason: str = "capture_failed") -> dict[str, str]:
    """Decode steps of a pod; `whole` counts the replays, to which the eager ones come."""
    return {
        f'soloist_eager_steps_total{{{POD}, reason="{reason}"}}': eager,
        f'soloist_step_seconds_count{{{POD}, mode="eager"}}': eager,
        f'soloist_step_seconds_count{{{POD}, mode="replay"}}': whole,
    }


def readiness(state: str, pod: str = "p") -> str:
    return f'soloist_readiness{{namespace="n", pod="{pod}", state="{state}"}}'


def drains(pod: str, cause: str = "node_disruption") -> str:
    return f'soloist_drains_total{{namespace="n", pod="{pod}", cause="{cause}"}}'


OF_POD = {"namespace": "n", "pod": "p"}
OF_NAMESPACE = {"namespace": "n"}
OF_MODEL = {"namespace": "n", "gen_ai_request_model": "m"}

CASES = (
    # 30 first tokens a minute; the budget's rate 14.4 is a share of 0.72, 6 is 0.3.
    Case("SoloistFirstTokenBurnFast", "nine of ten late", first_tokens("0+3x90", "0+30x90"), 90, OF_MODEL),
    Case(
        "SoloistFirstTokenBurnFast", "four of ten late, for hours", first_tokens("0+18x400", "0+30x400"), 400, OF_MODEL
    ),
    Case("SoloistFirstTokenBurnFast", "two of ten late", first_tokens("0+24x400", "0+30x400"), 400),
    Case("SoloistFirstTokenBurnFast", "late until an hour ago", first_tokens("0+3x60 210+30x60", "0+30x121"), 115),
    Case("SoloistFirstTokenBurnFast", "a handful of turns", first_tokens("0x90", "0 1 2 3 4 5x85"), 70),
    Case("SoloistFirstTokenBurnFast", "nobody asks", first_tokens("50x90", "80x90"), 90),
    Case("SoloistFirstTokenBurnFast", "no such series", {}, 90),
    Case(
        "SoloistFirstTokenBurnFast",
        "a restart is no burst of late ones",
        first_tokens("0+30x60 0+30x30", "0+30x60 0+30x30"),
        90,
    ),
    # 3 is a share of 0.15, 1 of 0.05.
    Case(
        "SoloistFirstTokenBurnSlow",
        "two of ten late for a day",
        first_tokens("0+24x150", "0+30x150"),
        1500,
        OF_MODEL,
        10,
    ),
    Case(
        "SoloistFirstTokenBurnSlow", "6 % late for three days", first_tokens("0+47x440", "0+50x440"), 4400, OF_MODEL, 10
    ),
    Case("SoloistFirstTokenBurnSlow", "4 % late for three days", first_tokens("0+48x440", "0+50x440"), 4400, None, 10),
    Case("SoloistFirstTokenBurnSlow", "no such series", {}, 1500, None, 10),
    Case("SoloistSlowTokens", "5 % halt", gaps("0+570x30", "0+600x30"), 20, OF_POD),
    Case("SoloistSlowTokens", "one in a thousand halts", gaps("0+599.4x30", "0+600x30"), 20),
    Case("SoloistSlowTokens", "not for long", gaps("0+600x20 11430+570x8", "0+600x29"), 28),
    Case("SoloistSlowTokens", "one token a minute", gaps("0x30", "0+1x30"), 20),
    Case("SoloistSlowTokens", "a restart between", gaps("0+570x12 0+570x18", "0+600x12 0+600x18"), 28, OF_POD),
    Case("SoloistSlowTokens", "no such series", {}, 20),
    Case("SoloistQueueWait", "a tenth waits long", waits("0+9x30", "0+10x30"), 20, OF_NAMESPACE),
    Case("SoloistQueueWait", "one in fifty waits long", waits("0+49x30", "0+50x30"), 20),
    Case(
        "SoloistQueueWait",
        "nobody leaves the queue, and it is predicted",
        {**waits("5x30", "5x30"), f"soloist_predicted_wait_seconds{{{POD}}}": "0x5 12x25"},
        20,
        OF_NAMESPACE,
    ),
    Case("SoloistQueueWait", "a short rush", {f"soloist_predicted_wait_seconds{{{POD}}}": "0x5 12x3 0x20"}, 10),
    Case("SoloistQueueWait", "no such series", {}, 20),
    Case("SoloistRefusals", "one in five", turns("0+2x30", "0+8x30"), 20, OF_NAMESPACE),
    Case("SoloistRefusals", "one in fifty", turns("0+1x30", "0+49x30"), 20),
    Case("SoloistRefusals", "bad requests are the callers'", turns("0+8x30", "0+2x30", "invalid_request"), 20),
    Case("SoloistRefusals", "a drain is meant", turns("0+8x30", "0+2x30", "draining"), 20),
    Case("SoloistRefusals", "nobody asks", turns("7x30", "9x30"), 20),
    Case("SoloistRefusals", "restarts between", turns("0+2x9 0+2x20", "0+8x9 0+8x20"), 25, OF_NAMESPACE),
    Case(
        "SoloistFailedTurns",
        "one failed",
        {f'soloist_requests_total{{{POD}, reason="failed"}}': "0x5 1x20"},
        8,
        {**OF_POD, "reason": "failed"},
    ),
    Case("SoloistFailedTurns", "long ago", {f'soloist_requests_total{{{POD}, reason="failed"}}': "0x5 1x30"}, 25),
    Case(
        "SoloistFailedTurns", "cancelled ones", {f'soloist_requests_total{{{POD}, reason="cancelled"}}': "0+9x30"}, 20
    ),
    Case("SoloistFailedTurns", "a restart", {f'soloist_requests_total{{{POD}, reason="failed"}}': "3x5 0x20"}, 8),
    Case(
        "SoloistHostStalls",
        "a fifth of the time",
        {
            f'soloist_stall_seconds_total{{{POD}, cause="host"}}': "0+6x40",
            f"soloist_inter_token_seconds_sum{{{POD}}}": "0+30x40",
        },
        30,
        OF_POD,
    ),
    Case(
        "SoloistHostStalls",
        "a hundredth, and much of other sessions",
        {
            f'soloist_stall_seconds_total{{{POD}, cause="host"}}': "0+0.3x40",
            f'soloist_stall_seconds_total{{{POD}, cause="other_session"}}': "0+15x40",
            f"soloist_inter_token_seconds_sum{{{POD}}}": "0+30x40",
        },
        30,
    ),
    Case("SoloistHostStalls", "no such series", {}, 30),
    Case("SoloistEagerSteps", "a tenth", steps("0+10x30", "0+90x30"), 20, {**OF_POD, "reason": "capture_failed"}),
    Case("SoloistEagerSteps", "one in a thousand", steps("0+1x30", "0+999x30"), 20),
    Case("SoloistEagerSteps", "a CPU", steps("0+100x30", "0x30", "no_cuda"), 20),
    Case("SoloistEagerSteps", "graphs are off", steps("0+100x30", "0x30", "disabled"), 20),
    Case("SoloistEagerSteps", "warming up, and then not", steps("0+10x3 30x27", "0+90x30", "warming_up"), 20),
    Case("SoloistEagerSteps", "nobody asks", steps("5x30", "95x30"), 20),
    Case(
        "SoloistEagerSteps",
        "restarts between",
        steps("0+10x9 0+10x20", "0+90x9 0+90x20"),
        25,
        {**OF_POD, "reason": "capture_failed"},
    ),
    Case("SoloistEagerSteps", "no such series", {}, 20),
    Case(
        "SoloistEagerPrefills",
        "chunks without memory for graphs",
        {f'soloist_eager_prefills_total{{{POD}, reason="out_of_memory"}}': "0+1x60"},
        40,
        {**OF_POD, "reason": "out_of_memory"},
    ),
    Case("SoloistEagerPrefills", "a CPU", {f'soloist_eager_prefills_total{{{POD}, reason="no_cuda"}}': "0+1x60"}, 40),
    Case(
        "SoloistEagerPrefills", "none", {f'soloist_eager_prefills_total{{{POD}, reason="out_of_memory"}}': "4x60"}, 40
    ),
    Case(
        "SoloistCaptureFailed",
        "before the first scrape",
        {f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "2x30"},
        10,
        {**OF_POD, "outcome": "failed"},
    ),
    Case(
        "SoloistCaptureFailed",
        "all captured",
        {
            f'soloist_graph_captures_total{{{POD}, outcome="captured", cause="start"}}': "24x30",
            f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "0x30",
        },
        10,
    ),
    Case(
        "SoloistCaptureFailed",
        "the pod was replaced",
        {f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "2x9 0x20"},
        15,
    ),
    Case(
        "SoloistSelfCheckFailed",
        "one",
        {f'soloist_self_checks_total{{{POD}, outcome="mismatch"}}': "0x5 1x9"},
        7,
        OF_POD,
    ),
    Case("SoloistSelfCheckFailed", "sound ones", {f'soloist_self_checks_total{{{POD}, outcome="sound"}}': "0+2x30"}, 9),
    Case(
        "SoloistNoReadyPod",
        "all load",
        {readiness("serving"): "0x30", readiness("loading"): "1x30"},
        10,
        OF_NAMESPACE,
    ),
    Case(
        "SoloistNoReadyPod",
        "one of two serves",
        {readiness("serving"): "0x30", readiness("serving", "q"): "1x30"},
        10,
    ),
    Case("SoloistNoReadyPod", "a quick replacement", {readiness("serving"): "1x5 0 0 1x20"}, 7),
    Case("SoloistNoReadyPod", "no pod at all is another alert's", {}, 10),
    Case("SoloistAbsent", "nothing", {}, 15, {}),
    Case("SoloistAbsent", "gone for long enough", {readiness("serving"): "1x5 _x30"}, 25, {}),
    Case("SoloistAbsent", "it loads", {readiness("serving"): "0x30"}, 15),
    Case("SoloistStartStuck", "twenty minutes", {readiness("loading"): "1x30"}, 20, OF_POD),
    Case("SoloistStartStuck", "five minutes", {readiness("loading"): "1x5 0x30"}, 20),
    Case("SoloistStartStuck", "no such series", {}, 20),
    Case("SoloistDrainStuck", "ten minutes", {readiness("draining"): "0x5 1x30"}, 15, OF_POD),
    Case("SoloistDrainStuck", "two minutes, and gone", {readiness("draining"): "0x5 1x2 stale"}, 15),
    Case(
        "SoloistInterruptionStorm",
        "three pods within half an hour, each gone soon after",
        {drains("p"): "0x20 1 1 stale", drains("q"): "0x25 1 1 stale", drains("r"): "0x28 1 1 stale"},
        32,
        OF_NAMESPACE,
    ),
    Case(
        "SoloistInterruptionStorm",
        "two",
        {drains("p"): "0x20 1 1 stale", drains("q"): "0x25 1 1 stale", drains("r"): "0x40"},
        32,
    ),
    Case(
        "SoloistInterruptionStorm",
        "a roll-out of five",
        {drains(f"p{n}", "signal"): f"0x{20 + n} 1 1 stale" for n in range(5)},
        30,
    ),
    Case("SoloistInterruptionStorm", "three restarts", {drains(f"p{n}"): "1x20 0x20" for n in range(3)}, 30),
    Case(
        "SoloistRestarts",
        "two",
        {f"process_start_time_seconds{{{POD}}}": "100x9 700x9 1300x20", readiness("serving"): "0x40"},
        30,
        OF_POD,
    ),
    Case(
        "SoloistRestarts",
        "one",
        {f"process_start_time_seconds{{{POD}}}": "100x9 700x29", readiness("serving"): "1x40"},
        30,
    ),
    Case("SoloistRestarts", "another program's", {f"process_start_time_seconds{{{POD}}}": "100x9 700x9 1300x20"}, 30),
    Case(
        "SoloistKubernetesErrors",
        "every request",
        {f'soloist_kubernetes_requests_total{{{POD}, operation="event", outcome="failed"}}': "0+1x60"},
        40,
        {**OF_POD, "operation": "event"},
    ),
    Case(
        "SoloistKubernetesErrors",
        "one watch that broke",
        {f'soloist_kubernetes_requests_total{{{POD}, operation="watch_node", outcome="failed"}}': "0x5 1x60"},
        30,
    ),
    Case(
        "SoloistKubernetesErrors",
        "good ones",
        {f'soloist_kubernetes_requests_total{{{POD}, operation="event", outcome="ok"}}': "0+1x60"},
        40,
    ),
)
SEVERITY = {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule}


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
    """All cases of one alert, of one step at a time: starting promtool costs more than playing a case."""
    cases = [case for case in CASES if case.alert == alert]
    for step_min in sorted({case.step_min for case in cases}):
        played = {
            "rule_files": [str(RULES)],
            "evaluation_interval": f"{step_min}m",
            "tests": [as_promtool(case) for case in cases if case.step_min == step_min],
        }
        file = tmp_path / "cases.yaml"
        file.write_text(yaml.safe_dump(played))
        command = [require_tool("promtool"), "test", "rules", str(file)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

        assert ran.returncode == 0, ran.stdout + ran.stderr


def as_promtool(case: Case) -> dict[str, Any]:
    """A case in the terms of promtool; its name comes with what went wrong."""
    wanted = {"alertname": case.alert, "alertstate": "firing", "severity": SEVERITY[case.alert], **(case.fires or {})}
    labels = ", ".join(f'{name}="{value}"' for name, value in wanted.items())
    return {
        "name": case.name,
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
