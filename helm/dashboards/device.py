"""What the GPU does: whether each token is one replay of a graph, why not, and what the memory holds and gives."""

from __future__ import annotations

from helm.dashboards import fleet, limits
from helm.dashboards.page import Page, Row
from helm.dashboards.panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    figure,
    graph,
    text_of,
)
from helm.dashboards.promql import grown, quantile, rate, series, total
from helm.dashboards.steps import STEPS, bandwidth_share, replayed, step_seconds, weights_read

POD = ("namespace", "pod")


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="soloist-device",
        title="Soloist: what the GPU does",
        description="Is every token one replay of a captured graph? If not, why not? And what does the memory give?",
        rows=(at_a_glance(), replays(), captures(), memory(), fleet.cache(), fleet.life(), fleet.device_by_pod()),
    )


def at_a_glance() -> Row:
    return Row(
        "At a glance",
        (
            figure(
                "Is every token a replay?",
                "Share of the decode steps, in the time shown, that were one replay of a captured graph. Normal on a "
                "GPU: yes. Anything below: the reasons are beside it, and SoloistEagerSteps has a runbook. On a CPU "
                "it is 0.",
                SHARE,
                replayed(),
                steps=limits.REPLAYED,
                mappings=(text_of(1, "yes", "green"),),
                decimals=2,  # or 99.99 % would read 100 %
                width=6,
            ),
            figure(
                "Largest reason why not",
                "The most frequent reason of eager steps, and how many it made in the time shown. Normal: none. "
                "no_cuda and disabled are choices; every other one costs speed without anybody's wish.",
                COUNT,
                f"topk(1, {total(grown('soloist_eager_steps_total'), 'reason')} > 0)",
                steps=limits.ANY_MILD,
                none="none",
                legend="{{reason}}",
                width=3,
            ),
            figure(
                "Graphs, fewest",
                "Captured graphs of the pod that has the fewest. Normal: the same on every pod. On a CPU: 0.",
                COUNT,
                f"min({series('soloist_graphs')})",
                none="no pod",
                width=3,
            ),
            figure(
                "Failed captures",
                "Of all chosen pods since they started. Normal: 0. Otherwise those shapes run eagerly until the pod "
                "goes.",
                COUNT,
                total(series("soloist_graph_captures_total", 'outcome!="captured"')),
                steps=limits.ANY,
                none="no pod",
                width=3,
            ),
            figure(
                "Failed self-checks",
                "Graphs that disagreed with their eager twin. Normal: 0. Any: replace the pod, keep its log.",
                COUNT,
                total(series("soloist_self_checks_total", 'outcome="mismatch"')),
                steps=limits.ANY,
                none="no pod",
                width=3,
            ),
            figure(
                "Share of memory bandwidth",
                "Weights read a second while steps run, by the bandwidth of the device's data sheet. A floor: keys "
                "and values come on top. Decoding is reading weights, so this is the yardstick: above 0.7 is good, "
                "below 0.4 something else is waited for. 0: the device's bandwidth is not known, as of a CPU.",
                SHARE,
                bandwidth_share(),
                width=3,
            ),
            figure(
                "A step",
                "Mean time of a decode step of all chosen pods, lately.",
                SECONDS,
                step_seconds(),
                width=3,
            ),
        ),
    )


def replays() -> Row:
    return Row(
        "Replays",
        (
            graph(
                "Decode steps: replays, and eager ones by reason",
                "A second, stacked: the whole is all tokens made. Normal on a GPU: one color. Each reason has a "
                "remedy in the runbook of SoloistEagerSteps.",
                TOKENS_PER_SECOND,
                [
                    Query(total(rate("soloist_graph_replays_total")), "replay"),
                    Query(total(rate("soloist_eager_steps_total"), "reason"), "eager: {{reason}}"),
                ],
                stacked=True,
                colors={"^replay$": "green"},
            ),
            graph(
                "Replays by graph",
                "The ten most played shapes: context bucket, rows, and what the sampler does. Normal: small buckets "
                "most. `other` are shapes beyond the first 128.",
                TOKENS_PER_SECOND,
                [Query(f"topk(10, {total(rate('soloist_graph_replays_total'), 'graph')})", "{{graph}}")],
            ),
            graph(
                "Time of a step",
                "By how it was run. Replay and eager are a decode step each, prefill is a chunk of a prompt. Normal: "
                "replay flat to the percent. Eager steps take longer, or graphs would be no use.",
                SECONDS,
                [Query(quantile(q, STEPS, "mode"), f"p{100 * q:g} {{{{mode}}}}") for q in (0.5, 0.99)],
            ),
            graph(
                "Eager prefill chunks by reason",
                "A second. Chunks are graphs too, of a few sizes. Normal on a GPU: 0. Otherwise first words come "
                "later.",
                PER_SECOND,
                [Query(total(rate("soloist_eager_prefills_total"), "reason"), "{{reason}}")],
            ),
        ),
        width=12,
    )


def captures() -> Row:
    spent = total(series("soloist_graph_capture_seconds_sum"), "cause")
    count = total(series("soloist_graph_capture_seconds_count"), "cause")
    return Row(
        "Captures",
        (
            graph(
                "Captures since pods started",
                "By outcome. Normal: all captured, in one step up for each new pod. failed and out_of_memory leave a "
                "working eager path: SoloistCaptureFailed.",
                COUNT,
                [Query(total(series("soloist_graph_captures_total"), "outcome", "cause"), "{{outcome}}, {{cause}}")],
            ),
            graph(
                "Time of a capture",
                "The mean, by why it was made. Normal: below a second. 0: none was made.",
                SECONDS,
                [Query(f"{spent} / clamp_min({count}, 1)", "{{cause}}")],
            ),
            graph(
                "Graphs by pod",
                "Normal: equal and constant. A pod with fewer lacks memory, or a capture failed.",
                COUNT,
                [Query(f"bottomk(10, {total(series('soloist_graphs'), 'pod')})", "{{pod}}")],
            ),
            graph(
                "Memory of the graphs' pool",
                "Device memory of the one pool that all graphs of a pod share. Normal: little more than the largest "
                "graph needs, and constant. Growth is a fault.",
                BYTES,
                [Query(f"topk(10, {total(series('soloist_graph_pool_bytes'), 'pod')})", "{{pod}}")],
            ),
        ),
        width=6,
    )


def memory() -> Row:
    return Row(
        "Memory bandwidth",
        (
            graph(
                "Weights read a second",
                "While steps run, the mean over pods, beside what data sheets promise (0: not known). The distance "
                "is what faster kernels could gain.",
                BYTES_PER_SECOND,
                [
                    Query(weights_read(), "weights read"),
                    Query(f"avg({series('soloist_memory_bandwidth_bytes_per_second')})", "data sheet"),
                ],
            ),
            graph(
                "Share of memory bandwidth by pod",
                "The ten lowest. One pod below the rest: a shared device, a slower model of GPU, eager steps. 0: not "
                "known, as of a CPU.",
                SHARE,
                [Query(f"bottomk(10, {bandwidth_share(*POD)})", "{{pod}}")],
            ),
            graph(
                "Host: memory of the server",
                "Resident memory of the process, the ten largest. Normal: flat once loaded, plus what idle sessions "
                "keep on the host.",
                BYTES,
                [Query(f"topk(10, {total(series('process_resident_memory_bytes'), 'pod')})", "{{pod}}")],
            ),
        ),
    )
