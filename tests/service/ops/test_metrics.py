"""Names are fixed, series exist from the start, buckets resolve what people feel, and figures equal what happened."""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.events import CaptureCause, CaptureOutcome, EagerReason, GraphCaptured, PrefillDone, Progress, StepDone
from service.client import ChatClient
from service.events import (
    ClusterCall,
    DrainCause,
    FirstToken,
    Load,
    Refusal,
    ResumeMode,
    SessionEvicted,
    StallCause,
    TokenMade,
    TurnEnd,
    TurnEnded,
    TurnRefused,
    TurnStarted,
)
from service.ops.buckets import ANSWER_BUCKETS, FIRST_TOKEN_BUCKETS, TOKEN_BUCKETS
from service.ops.health import Readiness
from service.ops.metrics import MAX_GRAPH_LABELS, Metrics, Served
from service.ops.metrics_port import serve_metrics
from tests.fakes import FakeEngine, saying
from tests.service.running import running

SERVED = Served("0.1", "m", "cpu", "float32", "native", "f", "on")

NAMES = {
    "soloist_graph_replays_total", "soloist_eager_steps_total", "soloist_graph_captures_total",
    "soloist_graph_capture_seconds", "soloist_graph_pool_bytes", "soloist_graphs", "soloist_step_seconds",
    "gen_ai_server_time_to_first_token_seconds", "gen_ai_server_time_per_output_token_seconds",
    "gen_ai_server_request_duration_seconds", "soloist_inter_token_seconds", "soloist_stall_seconds_total",
    "soloist_requests_total", "soloist_rejections_total", "soloist_cancel_to_idle_seconds", "soloist_resumes_total",
    "soloist_queue_depth", "soloist_active_turns", "soloist_predicted_wait_seconds", "soloist_kv_tokens",
    "soloist_prefix_tokens_total", "soloist_tokens_total", "soloist_info", "vllm:num_requests_waiting",
    "vllm:num_requests_running", "vllm:kv_cache_usage_perc",
    # Beyond the fixed names, those that dashboards and rules read.
    "soloist_queue_seconds", "soloist_kv_evicted_tokens_total", "soloist_readiness", "soloist_drains_total",
    "soloist_start_seconds", "soloist_load_bytes", "soloist_load_total_bytes", "soloist_kubernetes_requests_total",
    "soloist_step_weight_bytes", "soloist_memory_bandwidth_bytes_per_second", "soloist_eager_prefills_total",
    "soloist_self_checks_total",
}  # fmt: skip


def ended(end: TurnEnd = TurnEnd.STOP, **changes: object) -> TurnEnded:
    facts: dict[str, object] = {
        "request_id": "r",
        "end": end,
        "duration_s": 2.0,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 11,
        "discarded_tokens": 1,
        "replays": 12,
        "eager_steps": {},
        **changes,
    }
    return TurnEnded(**facts)  # type: ignore[arg-type]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def exposed(metrics: Metrics) -> set[str]:
    """Names as Prometheus writes them, those of histograms without their endings."""
    names = set()
    for family in metrics.registry.collect():
        for sample in family.samples:
            names.add(sample.name.removesuffix("_bucket") if family.type == "histogram" else sample.name)
    return names


def test_every_promised_name_exists_once_a_model_is_served() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    metrics.engine_event(GraphCaptured("b1", CaptureCause.START, CaptureOutcome.CAPTURED, 0.1, 10))

    assert exposed(metrics) >= NAMES


CLOSED: tuple[tuple[str, dict[str, Iterable[str]]], ...] = (
    ("soloist_eager_steps_total", {"reason": EagerReason}),
    ("soloist_eager_prefills_total", {"reason": EagerReason}),
    ("soloist_requests_total", {"reason": TurnEnd}),
    ("soloist_rejections_total", {"reason": Refusal}),
    ("soloist_stall_seconds_total", {"cause": StallCause}),
    ("soloist_graph_captures_total", {"cause": CaptureCause, "outcome": CaptureOutcome}),
    ("soloist_graph_capture_seconds_count", {"cause": CaptureCause}),
    ("soloist_step_seconds_count", {"mode": ("replay", "eager", "prefill")}),
    ("soloist_self_checks_total", {"outcome": ("sound", "mismatch")}),
    ("soloist_resumes_total", {"mode": ResumeMode}),
    ("soloist_prefix_tokens_total", {"source": ("session_cache", "prefill")}),
    ("soloist_tokens_total", {"kind": ("prompt", "completion", "discarded")}),
    ("soloist_kv_tokens", {"state": ("used", "free", "host")}),
    ("soloist_drains_total", {"cause": DrainCause}),
    ("soloist_kubernetes_requests_total", {"operation": ClusterCall, "outcome": ("ok", "failed")}),
)


@pytest.mark.parametrize(("name", "labels"), CLOSED, ids=[name for name, _ in CLOSED])
def test_every_series_of_a_closed_set_is_there_at_0(name: str, labels: dict[str, Iterable[str]]) -> None:
    metrics = Metrics()

    for values in itertools.product(*labels.values()):
        assert value(metrics, name, **dict(zip(labels, map(str, values), strict=True))) == 0


def test_without_graphs_there_are_0_replays_and_not_none() -> None:
    assert value(Metrics(), "soloist_graph_replays_total", graph="other") == 0


def test_a_server_begins_loading() -> None:
    metrics = Metrics()

    assert [value(metrics, "soloist_readiness", state=state) for state in Readiness] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("buckets", [TOKEN_BUCKETS, FIRST_TOKEN_BUCKETS, ANSWER_BUCKETS])
def test_met_03_buckets_reach_from_a_fifth_of_a_millisecond_to_ten_minutes(buckets: tuple[float, ...]) -> None:
    assert buckets[0] == 0.0002
    assert buckets[-1] == 600.0
    assert list(buckets) == sorted(set(buckets))


def test_met_03_token_buckets_resolve_5_to_500_ms() -> None:
    within = [bound for bound in TOKEN_BUCKETS if 0.005 <= bound <= 0.5]

    assert within[0] == 0.005
    assert within[-1] == 0.5
    assert all(after / before <= 2 for before, after in itertools.pairwise(within))


def test_met_03_the_bounds_of_the_genai_conventions_are_among_them() -> None:
    first = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0}
    token = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5}
    answer = {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}

    assert first <= set(FIRST_TOKEN_BUCKETS)
    assert token <= set(TOKEN_BUCKETS)
    assert answer <= set(ANSWER_BUCKETS)


def test_met_03_a_slow_run_on_a_cpu_lies_inside() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    for place in range(100):
        seconds = 10 + place / 2
        metrics.service_event(FirstToken(f"r{place}", seconds))
        metrics.service_event(ended(request_id=f"r{place}", duration_s=seconds * 2))

    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    for name in ("gen_ai_server_time_to_first_token_seconds", "gen_ai_server_request_duration_seconds"):
        assert value(metrics, f"{name}_bucket", le="600.0", **labels) == 100
        assert (value(metrics, f"{name}_bucket", le="10.0", **labels) or 0) <= 1


def test_steps_are_counted_by_how_they_were_run() -> None:
    metrics = Metrics()
    metrics.engine_event(StepDone("b1", None, 0.001))
    metrics.engine_event(StepDone("b1", None, 0.001))
    metrics.engine_event(StepDone(None, EagerReason.NO_CUDA, 0.01))
    metrics.engine_event(PrefillDone(512, 0.1))

    assert value(metrics, "soloist_graph_replays_total", graph="b1") == 2
    assert value(metrics, "soloist_eager_steps_total", reason="no_cuda") == 1
    assert value(metrics, "soloist_step_seconds_count", mode="replay") == 2
    assert value(metrics, "soloist_step_seconds_count", mode="prefill") == 1


def test_eager_chunks_are_counted_by_why_and_are_no_decode_steps() -> None:
    metrics = Metrics()
    metrics.engine_event(PrefillDone(512, 0.1, "prefill_r512"))
    metrics.engine_event(PrefillDone(512, 0.1, None, EagerReason.OUT_OF_MEMORY))

    assert value(metrics, "soloist_eager_prefills_total", reason="out_of_memory") == 1
    assert value(metrics, "soloist_eager_steps_total", reason="out_of_memory") == 0
    assert value(metrics, "soloist_step_seconds_count", mode="prefill") == 2


def test_a_graph_of_chunks_has_no_series_of_decode_steps() -> None:
    metrics = Metrics()
    captured = (CaptureCause.START, CaptureOutcome.CAPTURED, 0.1, 10)
    metrics.engine_event(GraphCaptured("prefill_r512", *captured, prefill=True))
    metrics.engine_event(GraphCaptured("b256_r1_greedy", *captured))

    assert value(metrics, "soloist_graph_replays_total", graph="prefill_r512") is None
    assert value(metrics, "soloist_graph_replays_total", graph="b256_r1_greedy") == 0
    assert value(metrics, "soloist_graphs") == 2


def test_a_runaway_set_of_shapes_becomes_other() -> None:
    metrics = Metrics()
    for shape in range(MAX_GRAPH_LABELS + 5):
        metrics.engine_event(StepDone(f"shape{shape}", None, 0.001))

    assert value(metrics, "soloist_graph_replays_total", graph="other") == 5


def test_captures_are_counted_and_only_good_ones_can_be_replayed() -> None:
    metrics = Metrics()
    metrics.engine_event(GraphCaptured("b1", CaptureCause.START, CaptureOutcome.CAPTURED, 0.1, 1000))
    metrics.engine_event(GraphCaptured("b2", CaptureCause.START, CaptureOutcome.OUT_OF_MEMORY, 0.1, 1000))

    assert value(metrics, "soloist_graphs") == 1
    assert value(metrics, "soloist_graph_pool_bytes") == 1000
    assert value(metrics, "soloist_graph_captures_total", outcome="out_of_memory", cause="start") == 1
    assert value(metrics, "soloist_graph_replays_total", graph="b1") == 0


def test_a_graph_captured_again_stands_in_for_the_one_before() -> None:
    metrics = Metrics()
    for cause in (CaptureCause.START, CaptureCause.WEIGHTS_CHANGED):
        for graph in ("b1", "b2"):
            metrics.engine_event(GraphCaptured(graph, cause, CaptureOutcome.CAPTURED, 0.1, 1000))
    assert value(metrics, "soloist_graphs") == 2

    metrics.engine_event(GraphCaptured("b1", CaptureCause.WEIGHTS_CHANGED, CaptureOutcome.FAILED, 0.1, 1000))
    assert value(metrics, "soloist_graphs") == 1


def test_a_turn_is_accounted_for() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    metrics.service_event(TurnStarted("r", 0.1, 10, 4))
    metrics.service_event(FirstToken("r", 0.5))
    metrics.service_event(TokenMade("r", 0.1, ((StallCause.PREFILL, 0.05),)))
    metrics.service_event(ended(cancel_to_idle_s=0.01))
    metrics.service_event(TurnRefused("s", Refusal.QUEUE_FULL))

    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m"}
    assert value(metrics, "soloist_tokens_total", kind="prompt") == 10
    assert value(metrics, "soloist_tokens_total", kind="completion") == 11
    assert value(metrics, "soloist_tokens_total", kind="discarded") == 1
    assert value(metrics, "soloist_prefix_tokens_total", source="session_cache") == 4
    assert value(metrics, "soloist_prefix_tokens_total", source="prefill") == 6
    assert value(metrics, "soloist_stall_seconds_total", cause="prefill") == 0.05
    assert value(metrics, "soloist_rejections_total", reason="queue_full") == 1
    assert value(metrics, "soloist_cancel_to_idle_seconds_count") == 1
    assert value(metrics, "soloist_queue_seconds_sum") == 0.1
    per_token = value(metrics, "gen_ai_server_time_per_output_token_seconds_sum", **labels)
    assert per_token == pytest.approx((2.0 - 0.5) / 10)
    assert not metrics._since_admission_s


def test_load_is_shown_under_our_names_and_vllms() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    metrics.show_load(Load(3, 1, 2.5, 0.01, 25, 100, False))

    assert value(metrics, "soloist_queue_depth") == value(metrics, "vllm:num_requests_waiting", model_name="m") == 3
    assert value(metrics, "soloist_active_turns") == value(metrics, "vllm:num_requests_running", model_name="m") == 1
    assert value(metrics, "soloist_kv_tokens", state="free") == 75
    assert value(metrics, "vllm:kv_cache_usage_perc", model_name="m") == 0.25


def test_a_start_is_shown_while_it_lasts() -> None:
    now_s = 10.0
    metrics = Metrics(lambda: now_s)
    now_s += 2.0
    metrics.engine_event(Progress("load", 30, 120, "bytes"))
    now_s += 1.0

    assert value(metrics, "soloist_start_seconds", phase="open") == 2.0
    assert value(metrics, "soloist_start_seconds", phase="load") == 1.0
    assert value(metrics, "soloist_load_bytes", phase="load") == 30
    assert value(metrics, "soloist_load_total_bytes", phase="load") == 120
    assert value(metrics, "soloist_load_total_bytes", phase="download") == 0
    metrics.engine_event(Progress("capture", 1, 5, "graphs"))
    assert value(metrics, "soloist_load_total_bytes", phase="load") == 120


def test_the_bandwidth_share_has_both_sides_or_says_0() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    assert value(metrics, "soloist_step_weight_bytes") == 0
    assert value(metrics, "soloist_memory_bandwidth_bytes_per_second") == 0

    metrics.serve_model(replace(SERVED, step_weight_bytes=1000, memory_bytes_per_s=6e11))
    assert value(metrics, "soloist_step_weight_bytes") == 1000
    assert value(metrics, "soloist_memory_bandwidth_bytes_per_second") == 6e11


def test_cache_that_is_forgotten_is_counted() -> None:
    metrics = Metrics()
    metrics.service_event(SessionEvicted(700))

    assert value(metrics, "soloist_kv_evicted_tokens_total") == 700


def test_requests_to_the_cluster_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    metrics.cluster_asked(ClusterCall.DELETION_COST, failed=False)
    metrics.cluster_asked(ClusterCall.DELETION_COST, failed=True)

    for outcome in ("ok", "failed"):
        assert value(metrics, "soloist_kubernetes_requests_total", operation="deletion_cost", outcome=outcome) == 1


async def test_a_server_that_leaves_is_counted_once() -> None:
    async with running(FakeEngine()) as app:
        assert value(app.metrics, "soloist_readiness", state="serving") == 1
        app.signal()
        app.signal()
        await app.run()

        assert value(app.metrics, "soloist_drains_total", cause="signal") == 1
        assert value(app.metrics, "soloist_drains_total", cause="node_disruption") == 0
        assert value(app.metrics, "soloist_readiness", state="draining") == 1


def fetch(address: str) -> str:
    """The page, asked for as Prometheus asks."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as response:
        return str(response.read().decode())


def test_prometheus_reads_vllms_names_with_their_colon() -> None:
    metrics = Metrics()
    metrics.serve_model(SERVED)
    endpoint = serve_metrics(metrics, "127.0.0.1:0")
    page = fetch(endpoint.address)
    endpoint.close()

    assert '\nvllm:num_requests_waiting{model_name="m"} 0.0\n' in page


def test_the_endpoint_serves_what_prometheus_can_read_and_frees_its_port() -> None:
    metrics = Metrics()
    endpoint = serve_metrics(metrics, "127.0.0.1:0")
    names = {family.name for family in text_string_to_metric_families(fetch(endpoint.address))}
    endpoint.close()

    assert "soloist_eager_steps" in names
    serve_metrics(metrics, endpoint.address).close()


async def test_after_a_turn_replays_and_eager_steps_are_its_decode_steps_and_no_label_is_an_id() -> None:
    import asyncio

    engine = FakeEngine(answer=saying("figures"))
    async with running(engine, metrics_listen="127.0.0.1:0") as app, ChatClient(app.address) as chat:
        answer = await chat.ask("x")
        assert app.metrics_address is not None
        text = await asyncio.to_thread(fetch, app.metrics_address)

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    steps = sum(
        sample.value
        for sample in samples
        if sample.name in ("soloist_graph_replays_total", "soloist_eager_steps_total")
    )
    assert steps == engine.decode_steps == answer.finished.completion_tokens
    assert answer.started.request_id not in text
    tokens = {sample.labels["kind"]: sample.value for sample in samples if sample.name == "soloist_tokens_total"}
    assert tokens["completion"] == answer.finished.completion_tokens
    assert tokens["prompt"] == answer.finished.prompt_tokens
