"""What decode steps say: how many were replays, how long one takes, and what share of the bandwidth it reaches."""

from __future__ import annotations

from helm.dashboards.promql import grown, rate, series, share, total

STEPS = "soloist_step_seconds"
EAGER, DECODED = 'mode="eager"', 'mode=~"replay|eager"'


def replayed(*labels: str) -> str:
    """Share of the decode steps that were a replay, in the time shown.

    Out of the eager ones: where there are none it is 1 to the last bit, whatever order sums are made in.
    """
    return (
        f"1 - {share(total(grown(f'{STEPS}_count', EAGER), *labels), total(grown(f'{STEPS}_count', DECODED), *labels))}"
    )


def step_seconds(*labels: str) -> str:
    """Mean time of a decode step."""
    return share(total(rate(f"{STEPS}_sum", DECODED), *labels), total(rate(f"{STEPS}_count", DECODED), *labels))


def weights_read(*labels: str) -> str:
    """Bytes of weights a second, while steps run: what one pod's device gives, the mean over pods."""
    read = total(f"{series('soloist_step_weight_bytes')} * on (namespace, pod) {_by_pod(f'{STEPS}_count')}", *labels)
    return f"{read} / ({total(_by_pod(f'{STEPS}_sum'), *labels)} > 0)"


def bandwidth_share(*labels: str) -> str:
    """The same, by what data sheets promise; 0 where a device's bandwidth is not known, as of a CPU."""
    promised = total(
        f"{series('soloist_memory_bandwidth_bytes_per_second')} * on (namespace, pod) {_by_pod(f'{STEPS}_sum')}",
        *labels,
    )
    read = total(f"{series('soloist_step_weight_bytes')} * on (namespace, pod) {_by_pod(f'{STEPS}_count')}", *labels)
    nothing = f"0 * {total(series('soloist_memory_bandwidth_bytes_per_second'), *labels)}"
    return f"{read} / ({promised} > 0) or {nothing}"


def _by_pod(name: str) -> str:
    return f"sum by (namespace, pod) ({rate(name, DECODED)})"
