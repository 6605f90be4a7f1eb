"""Of the alerts on pods: whether they serve, start, leave."""

from __future__ import annotations

from tests.observability.cases.case import OF_NAMESPACE, OF_POD, POD, Case


def readiness(state: str, pod: str = "p") -> str:
    return f'soloist_readiness{{namespace="n", pod="{pod}", state="{state}"}}'


def drains(pod: str, cause: str = "node_disruption") -> str:
    return f'soloist_drains_total{{namespace="n", pod="{pod}", cause="{cause}"}}'


CASES = (
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
