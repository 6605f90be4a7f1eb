"""What the GPU does: whether each token is one replay of a graph, why not, and what the memory holds and gives."""

from __future__ import annotations

from helm.dashboards.page import Page, Row
from helm.dashboards.panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_PER_SECOND,
    Column,
    Labels,
    Query,
    bars,
    figure,
    graph,
    pods,
    text_of,
)
from helm.dashboards.promql import IN_NAMESPACE, grown, quantile, rate, series, share, total

STEPS = "soloist_step_seconds"
REPLAYED, DECODED = 'mode="replay"', 'mode=~"replay|eager"'
REPLAY_STEPS = ((0.0, "red"), (0.99, "orange"), (1.0, "green"))
POD = ("namespace", "pod")


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="soloist-device",
        title="Soloist: what the GPU does",
        description="Is every token one replay of a captured graph? If not, why not? And what does the memory give?",
        rows=(at_a_glance(), replays(), captures(), memory(), cache(), life(), by_pod()),
    )


def replayed(*labels: str) -> str:
    """Share of the decode steps that were a replay, in the time shown."""
    return share(total(grown(f"{STEPS}_count", REPLAYED), *labels), total(grown(f"{STEPS}_count", DECODED), *labels))


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
                steps=REPLAY_STEPS,
                mappings=(text_of(1, "yes", "green"),),
                width=6,
            ),
            figure(
                "Largest reason why not",
                "The most frequent reason of eager steps, and how many it made in the time shown. Normal: none. "
                "no_cuda and disabled are choices; every other one costs speed without anybody's wish.",
                COUNT,
                f"topk(1, {total(grown('soloist_eager_steps_total'), 'reason')} > 0)",
                steps=((0.5, "orange"),),
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
                steps=((0.5, "red"),),
                none="no pod",
                width=3,
            ),
            figure(
                "Failed self-checks",
                "Graphs that disagreed with their eager twin. Normal: 0. Any: replace the pod, keep its log.",
                COUNT,
                total(series("soloist_self_checks_total", 'outcome="mismatch"')),
                steps=((0.5, "red"),),
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
                width=6,
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


def cache() -> Row:
    return Row(
        "KV cache and prefixes",
        (
            graph(
                "KV tokens by state",
                "used and free are the device's, host is what idle sessions keep in host memory. Normal: used "
                "follows the sessions. No free and host at its limit: sessions are forgotten, and their next turn "
                "reads all again.",
                TOKENS,
                [Query(total(series("soloist_kv_tokens"), "state"), "{{state}}")],
                stacked=True,
            ),
            graph(
                "Forgotten KV tokens",
                "A second: cache of idle sessions that had to make room. Normal: 0. Otherwise raise --host-kv-bytes.",
                TOKENS_PER_SECOND,
                [Query(total(rate("soloist_kv_evicted_tokens_total")), "forgotten")],
            ),
            graph(
                "Prompt tokens by source",
                "From a session's cache, or read. Normal: long conversations come mostly from the cache. Much "
                "prefill with sessions: they land on other pods, or were forgotten.",
                TOKENS_PER_SECOND,
                [Query(total(rate("soloist_prefix_tokens_total"), "source"), "{{source}}")],
                stacked=True,
            ),
        ),
    )


def life() -> Row:
    loaded = total(series("soloist_load_bytes", chosen=IN_NAMESPACE), "pod")
    in_all = total(series("soloist_load_total_bytes", chosen=IN_NAMESPACE), "pod")
    return Row(
        "Pods that come and go",
        (
            graph(
                "Pods by state",
                "In the chosen namespaces, whatever model they serve. Normal: all serving. unsound: a self-check "
                "failed, replace the pod. draining for long: SoloistDrainStuck.",
                COUNT,
                [Query(total(series("soloist_readiness", chosen=IN_NAMESPACE), "state"), "{{state}}")],
                stacked=True,
            ),
            graph(
                "Loaded part of the model",
                "Of each pod's weights, the ten least. Normal: rises to 1 within minutes. Flat below 1: the store is "
                "slow or gone; the log has the pod's last progress.",
                SHARE,
                [Query(f"bottomk(10, {loaded} / clamp_min({in_all}, 1))", "{{pod}}")],
            ),
            bars(
                "Start by phase, slowest pod",
                "Seconds to open the model's files, to bring its weights to the device, and to capture graphs. "
                "Normal: load is most, and follows the store's speed. capture grows with the number of shapes.",
                SECONDS,
                [Query(f"max by (phase) ({series('soloist_start_seconds', chosen=IN_NAMESPACE)})", "{{phase}}")],
            ),
            graph(
                "Servers told to leave",
                "Within the interval, by what told them: a signal (roll-out, scale-down) or the node's disruption "
                "(spot notice, consolidation). Three of the latter in 30 minutes: SoloistInterruptionStorm.",
                COUNT,
                [
                    Query(
                        total(
                            f"changes({series('soloist_drains_total', chosen=IN_NAMESPACE)}[$__rate_interval])", "cause"
                        ),
                        "{{cause}}",
                    )
                ],
            ),
            graph(
                "Requests to the Kubernetes API",
                "A second, by outcome. Normal: no failed ones. Otherwise deletion costs are stale and interruptions "
                "may be seen late: SoloistKubernetesErrors.",
                PER_SECOND,
                [
                    Query(
                        total(rate("soloist_kubernetes_requests_total"), "operation", "outcome"),
                        "{{operation}}, {{outcome}}",
                    )
                ],
            ),
            graph(
                "Dropped log lines",
                "A second: lines that nobody read in time. Normal: 0. Otherwise the node's log collector is stuck.",
                PER_SECOND,
                [Query(total(rate("soloist_log_records_dropped_total")), "dropped")],
            ),
        ),
    )


def by_pod() -> Row:
    return Row(
        "Per pod",
        (
            pods(
                "Pods",
                "One line a pod. Sorted by the share of replays: the pod to look at is at an end of the list.",
                (
                    Column("Replays", replayed(*POD), SHARE, REPLAY_STEPS),
                    Column("A step", step_seconds(*POD), SECONDS),
                    Column("Of bandwidth", bandwidth_share(*POD), SHARE),
                    Column("Graphs", total(series("soloist_graphs"), *POD)),
                    Column("Pool", total(series("soloist_graph_pool_bytes"), *POD), BYTES),
                    Column("KV used", total(series("vllm:kv_cache_usage_perc"), *POD), SHARE, ((0.9, "orange"),)),
                    Column("Up for", f"time() - {total(series('process_start_time_seconds'), *POD)}", SECONDS),
                ),
                Labels(
                    total(series("soloist_info"), *POD, "model", "device", "precision", "decoder", "graphs", "version"),
                    {
                        "model": "Model",
                        "device": "Device",
                        "precision": "Precision",
                        "decoder": "Decoder",
                        "graphs": "Graphs are",
                        "version": "Version",
                    },
                ),
            ),
        ),
    )
