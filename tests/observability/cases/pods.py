"""Of the alerts on pods: whether they serve, start, leave."""

from __future__ import annotations

from tests.observability.cases.case import OF_NAMESPACE, OF_POD, POD, Case


def readiness(state: str, pod: str = "p", namespace: str = "n") -> str:
    return f'soloist_readiness{{namespace="{namespace}", pod="{pod}", state="{state}"}}'


def drains(pod: str, cause: str = "node_disruption") -> str:
    return f'soloist_drains_total{{namespace="n", pod="{pod}", cause="{cause}"}}'


# A pod loads from the minute 15 on, and serves from the minute 30 on.
MORNING = {readiness("serving"): "_x15 0x14 1x20", readiness("loading"): "_x15 1x14 0x20"}
# A pod serves, leaves for two minutes from the minute 6 on, and is gone.
GOES = {readiness("serving"): "1x5 0x1 stale", readiness("draining"): "0x5 1x1 stale"}

CASES = (
    Case(
        "SoloistNoReadyPod",
        "all are unsound",
        {readiness("serving"): "0x30", readiness("unsound"): "1x30", readiness("loading"): "0x30"},
        10,
        OF_NAMESPACE,
    ),
    Case("SoloistNoReadyPod", "all load", {readiness("serving"): "0x30", readiness("loading"): "1x30"}, 10),
    Case(
        "SoloistNoReadyPod",
        "one of two serves",
        {readiness("serving"): "0x30", readiness("serving", "q"): "1x30"},
        10,
    ),
    Case("SoloistNoReadyPod", "the only pod goes, and the next is not there yet", GOES, 9),
    Case("SoloistNoReadyPod", "no pod at all is another alert's", {}, 10),
    Case(
        "SoloistStillNotReady",
        "half an hour",
        {readiness("serving"): "0x40", readiness("loading"): "1x40"},
        30,
        OF_NAMESPACE,
    ),
    Case(
        "SoloistStillNotReady",
        "it ends each time after two minutes, and waits for five",
        {readiness("serving"): " ".join(["0 0 stale _x4"] * 6)},
        40,
        OF_NAMESPACE,
    ),
    Case("SoloistStillNotReady", "a morning start of 15 minutes, at its end", MORNING, 29),
    Case("SoloistStillNotReady", "after a morning start", MORNING, 40),
    Case(
        "SoloistStillNotReady",
        "the only pod is replaced, on a new node",
        {**GOES, readiness("serving", "q"): "_x10 0x14 1x20"},
        24,
    ),
    Case("SoloistStillNotReady", "it went for the night", GOES, 16),
    Case("SoloistStillNotReady", "hours later", GOES, 300),
    Case(
        "SoloistStillNotReady",
        "one of two serves",
        {readiness("serving"): "0x40", readiness("serving", "q"): "1x40"},
        35,
    ),
    Case(
        "SoloistAbsent",
        "all pods of one namespace are Pending while another is fine",
        {readiness("serving"): "1x5 stale", readiness("serving", namespace="other"): "1x60"},
        25,
        OF_NAMESPACE,
    ),
    Case(
        "SoloistAbsent",
        "they were for five minutes",
        {readiness("serving"): "1x5 stale _x4 0x30", readiness("serving", namespace="other"): "1x60"},
        18,
    ),
    Case("SoloistAbsent", "nothing", {}, 15, {}),
    Case("SoloistAbsent", "the only namespace's, once", {readiness("serving"): "1x5 _x30"}, 25, OF_NAMESPACE),
    Case("SoloistAbsent", "hours later of nobody's", {readiness("serving"): "1x5 _x200"}, 180, {}),
    Case("SoloistAbsent", "it loads", {readiness("serving"): "0x30"}, 15),
    Case("SoloistStartStuck", "twenty minutes", {readiness("loading"): "1x30"}, 20, OF_POD),
    Case("SoloistStartStuck", "a morning start of 15 minutes, at its end", MORNING, 29),
    Case("SoloistStartStuck", "after a morning start", MORNING, 35),
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
    Case(
        "SoloistLogsDropped",
        "a burst",
        {f"soloist_log_records_dropped_total{{{POD}}}": "0x5 40x30"},
        8,
        OF_POD,
    ),
    Case("SoloistLogsDropped", "long ago", {f"soloist_log_records_dropped_total{{{POD}}}": "0x5 40x40"}, 30),
    Case("SoloistLogsDropped", "a restart", {f"soloist_log_records_dropped_total{{{POD}}}": "40x5 0x20"}, 8),
    Case("SoloistLogsDropped", "none", {f"soloist_log_records_dropped_total{{{POD}}}": "0x30"}, 20),
)
