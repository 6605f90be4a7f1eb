"""Of the alerts on graphs and replays."""

from __future__ import annotations

from tests.observability.cases.case import OF_POD, POD, Case


def steps(eager: str, whole: str, reason: str = "capture_failed") -> dict[str, str]:
    """Decode steps of a pod; `whole` counts the replays, to which the eager ones come."""
    return {
        f'soloist_eager_steps_total{{{POD}, reason="{reason}"}}': eager,
        f'soloist_step_seconds_count{{{POD}, mode="eager"}}': eager,
        f'soloist_step_seconds_count{{{POD}, mode="replay"}}': whole,
    }


CASES = (
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
)
