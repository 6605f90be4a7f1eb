"""Pods beside each other, and their lives: the rows that tell which pod to look at."""

from __future__ import annotations

from helm.dashboards import limits
from helm.dashboards.names import BETWEEN, FIRST, OWN_FAULTS, WANTED_ROOM
from helm.dashboards.page import Row
from helm.dashboards.panels import (
    BYTES,
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
    graph,
    pods,
)
from helm.dashboards.promql import IN_NAMESPACE, grown, quantile, rate, series, share, total
from helm.dashboards.steps import bandwidth_share, replayed, step_seconds

POD = ("namespace", "pod")


def cache() -> Row:
    """What the KV cache holds, and what it spares."""
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
    """Pods that start, serve and leave."""
    loaded = total(series("soloist_load_bytes", chosen=IN_NAMESPACE), "pod", "phase")
    in_all = total(series("soloist_load_total_bytes", chosen=IN_NAMESPACE), "pod", "phase")
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
                colors={
                    "serving": "green",
                    "loading": "blue",
                    "draining": "yellow",
                    "unsound": "orange",
                    "engine_lost": "red",
                },
            ),
            graph(
                "Loaded part of the model",
                "Of each pod's weights, the ten least: onto the device, and before that, for a model of a bucket, "
                "into the node's cache. Normal: rises to 1 within minutes. Flat below 1: the store is slow or gone; "
                "the log has the pod's last progress.",
                SHARE,
                [Query(f"bottomk(10, {share(loaded, in_all)})", "{{pod}} {{phase}}")],
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


def device_by_pod() -> Row:
    """What the GPU does, pod by pod."""
    return Row(
        "Per pod",
        (
            pods(
                "Pods",
                "One line a pod. Sorted by the share of replays: the pod to look at is at an end of the list.",
                (
                    Column("Replays", replayed(*POD), SHARE, limits.REPLAYED),
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


def readers_by_pod() -> Row:
    """What readers feel, pod by pod."""
    first = quantile(0.95, FIRST, *POD, over="$__range")
    between = quantile(0.99, BETWEEN, *POD, over="$__range")
    return Row(
        "Per pod",
        (
            pods(
                "Pods",
                "A line that differs from the others is a pod to look at: a slow neighbour, a cold cache, an eager "
                "step. Sort by a column's title; its menu filters.",
                (
                    Column("Waiting", total(series("soloist_queue_depth"), *POD)),
                    Column("Playing", total(series("soloist_active_turns"), *POD)),
                    Column("First token p95", first, SECONDS, limits.FIRST_TOKEN),
                    Column("Between p99", between, SECONDS, limits.BETWEEN_TOKENS),
                    Column(
                        "Tokens",
                        total(rate("soloist_tokens_total", 'kind="completion"'), *POD),
                        TOKENS_PER_SECOND,
                    ),
                    Column(
                        "Refused",
                        total(grown("soloist_rejections_total", WANTED_ROOM), *POD),
                        COUNT,
                        limits.ANY_MILD,
                    ),
                    Column("Broken", total(grown("soloist_requests_total", OWN_FAULTS), *POD), COUNT, limits.ANY),
                ),
            ),
            graph(
                "Time to first token by pod",
                "p95 of the ten slowest pods. One pod above the rest: look at its queue and its node.",
                SECONDS,
                [Query(f"topk(10, {quantile(0.95, FIRST, 'pod')})", "{{pod}}")],
            ),
            graph(
                "Time between tokens by pod",
                "p99 of the ten slowest pods. One pod above the rest: its steps are eager, or its node is short of "
                "CPU.",
                SECONDS,
                [Query(f"topk(10, {quantile(0.99, BETWEEN, 'pod')})", "{{pod}}")],
            ),
            graph(
                "Waiting turns by pod",
                "The ten longest queues. One much longer than the rest: clients stick to one pod.",
                COUNT,
                [Query(f"topk(10, {total(series('soloist_queue_depth'), 'pod')})", "{{pod}}")],
            ),
        ),
    )
