"""Prometheus metrics: the only importer of prometheus_client. It hears what happened and keeps figures.

Every series of a closed set of labels exists from the start at 0. No label carries an id. All methods may be called
from any thread. The file is longer than others because every name that a dashboard may rely on is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, MetricsHandler, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from engine.events import (
    CaptureCause,
    CaptureOutcome,
    EagerReason,
    EngineEvent,
    GraphCaptured,
    PrefillDone,
    Progress,
    SelfChecked,
    StepDone,
)
from service.events import (
    ClusterCall,
    DrainCause,
    FirstToken,
    Load,
    Refusal,
    ResumeMode,
    ServiceEvent,
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
from service.ops.start_phases import StartPhase, StartPhases

MAX_GRAPH_LABELS = 128  # shapes are few; a runaway set becomes `other`
OPERATION = "chat"


@dataclass(frozen=True, slots=True)
class Served:
    """What is known of the model once it is open: the labels of soloist_info, and two sizes.

    Attributes:
        step_weight_bytes: what a decode step reads of the weights, None where not known.
        memory_bytes_per_s: what the device's memory could give, None where not known.
    """

    version: str
    model: str
    device: str
    precision: str
    decoder: str
    fingerprint: str
    graphs: str
    step_weight_bytes: int | None = None
    memory_bytes_per_s: float | None = None


class Metrics:
    """All figures of one server in a registry of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self._graph_labels: set[str] = set()
        self._captured: set[str] = set()
        self._since_admission_s: dict[str, float] = {}  # of turns that had a first token and have not ended
        self._steps_of_graphs()
        self._gen_ai()
        self._turns()
        self._load_gauges()
        self._life(StartPhases(clock))
        self._log_drops = _LogDrops()
        self.registry.register(self._log_drops)
        ProcessCollector(registry=self.registry)

    # What there is.

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=tuple(buckets))

    def _steps_of_graphs(self) -> None:
        self._replays = self._counter("soloist_graph_replays", "Decode steps that were one graph replay.", ("graph",))
        self._eager = self._counter("soloist_eager_steps", "Decode steps that were no replay, by why.", ("reason",))
        self._captures = self._counter("soloist_graph_captures", "Graph captures.", ("outcome", "cause"))
        self._capture_s = self._histogram(
            "soloist_graph_capture_seconds", "Time of one graph capture.", FIRST_TOKEN_BUCKETS, ("cause",)
        )
        self._pool_bytes = self._gauge("soloist_graph_pool_bytes", "Device memory of the graphs' one pool.")
        self._graphs = self._gauge("soloist_graphs", "Graphs that can be replayed.")
        self._step_s = self._histogram("soloist_step_seconds", "Time of one step.", TOKEN_BUCKETS, ("mode",))
        self._checks = self._counter("soloist_self_checks", "Graphs compared with their eager twin.", ("outcome",))
        self._step_bytes = self._gauge(
            "soloist_step_weight_bytes", "Weights that a decode step reads, without keys and values; 0: not known."
        )
        self._memory_rate = self._gauge(
            "soloist_memory_bandwidth_bytes_per_second", "The device's, by its data sheet; 0 where not known."
        )
        # Replays of chunks are in `soloist_step_seconds{mode="prefill"}` and no others: so all of
        # `soloist_graph_replays_total` and `soloist_eager_steps_total` together is every decode step, once.
        self._eager_prefills = self._counter(
            "soloist_eager_prefills", "Prefill chunks that were no replay, by why.", ("reason",)
        )
        # Without graphs, as on a CPU, the counter would have no series: then a sum of it is nothing, and not 0.
        self._replays.labels("other")
        for outcome in ("sound", "mismatch"):
            self._checks.labels(outcome)
        for reason in EagerReason:
            self._eager.labels(reason.value)
            self._eager_prefills.labels(reason.value)
        for cause in CaptureCause:
            self._capture_s.labels(cause.value)
            for outcome in CaptureOutcome:
                self._captures.labels(outcome.value, cause.value)
        for mode in ("replay", "eager", "prefill"):
            self._step_s.labels(mode)

    def _gen_ai(self) -> None:
        labels = ("gen_ai_operation_name", "gen_ai_request_model")
        self._model: str | None = None
        self._first_token_s = self._histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From admission to the first token.",
            FIRST_TOKEN_BUCKETS,
            labels,
        )
        self._per_token_s = self._histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per token after the first, of one turn.",
            TOKEN_BUCKETS,
            labels,
        )
        self._duration_s = self._histogram(
            "gen_ai_server_request_duration_seconds", "From admission to the end.", ANSWER_BUCKETS, labels
        )

    def _turns(self) -> None:
        self._gap_s = self._histogram("soloist_inter_token_seconds", "Between two tokens of one turn.", TOKEN_BUCKETS)
        self._queue_s = self._histogram("soloist_queue_seconds", "From admission to the device.", FIRST_TOKEN_BUCKETS)
        self._stall_s = self._counter("soloist_stall_seconds", "Time tokens waited for other things.", ("cause",))
        self._requests = self._counter("soloist_requests", "Admitted turns that ended, by how.", ("reason",))
        self._rejections = self._counter("soloist_rejections", "Turns that were not admitted.", ("reason",))
        self._idle_s = self._histogram(
            "soloist_cancel_to_idle_seconds", "From the wish to break off to the engine's rest.", FIRST_TOKEN_BUCKETS
        )
        self._resumes = self._counter("soloist_resumes", "Answers resumed.", ("mode",))
        self._prefix = self._counter("soloist_prefix_tokens", "Prompt tokens by where they came from.", ("source",))
        self._tokens = self._counter("soloist_tokens", "Tokens read, given, and made in vain.", ("kind",))
        for counter, values in (
            (self._stall_s, [cause.value for cause in StallCause]),
            (self._requests, [end.value for end in TurnEnd]),
            (self._rejections, [refusal.value for refusal in Refusal]),
            (self._resumes, [mode.value for mode in ResumeMode]),
            (self._prefix, ["session_cache", "prefill"]),
            (self._tokens, ["prompt", "completion", "discarded"]),
        ):
            for value in values:
                counter.labels(value)

    def _load_gauges(self) -> None:
        self._queue = self._gauge("soloist_queue_depth", "Turns that wait.")
        self._active = self._gauge("soloist_active_turns", "Turns on the device.")
        self._wait_s = self._gauge("soloist_predicted_wait_seconds", "What a new turn would wait.")
        self._kv = self._gauge("soloist_kv_tokens", "Tokens of KV cache.", ("state",))
        self._evicted = self._counter("soloist_kv_evicted_tokens", "KV cache of idle sessions that was forgotten.")
        self._info = self._gauge(
            "soloist_info",
            "What is served.",
            ("version", "model", "device", "precision", "decoder", "fingerprint", "graphs"),
        )
        self._vllm_waiting = self._gauge("vllm:num_requests_waiting", "Alias of soloist_queue_depth.", ("model_name",))
        self._vllm_running = self._gauge("vllm:num_requests_running", "Alias of soloist_active_turns.", ("model_name",))
        self._vllm_kv = self._gauge("vllm:kv_cache_usage_perc", "Share of KV cache in use, 0 to 1.", ("model_name",))
        for state in ("used", "free", "host"):
            self._kv.labels(state)

    def _life(self, start: StartPhases) -> None:
        self._start = start
        self._readiness = self._gauge("soloist_readiness", "1 for the state that holds, 0 for the others.", ("state",))
        self._drains = self._counter("soloist_drains", "Times that the server began to leave, by why.", ("cause",))
        self._start_s = self._gauge("soloist_start_seconds", "How long each part of the start took.", ("phase",))
        self._load_bytes = self._gauge("soloist_load_bytes", "Bytes of the model that are there.", ("phase",))
        self._load_total_bytes = self._gauge("soloist_load_total_bytes", "Of so many in all.", ("phase",))
        self._cluster = self._counter(
            "soloist_kubernetes_requests", "Requests to the Kubernetes API.", ("operation", "outcome")
        )
        self.move_readiness(Readiness.LOADING)
        for cause in DrainCause:
            self._drains.labels(cause.value)
        for moved in (StartPhase.DOWNLOAD, StartPhase.LOAD):
            self._load_bytes.labels(moved.value)
            self._load_total_bytes.labels(moved.value)
        for phase in StartPhase:
            self._start_s.labels(phase.value).set_function(partial(start.seconds, phase))
        for operation in ClusterCall:
            for outcome in ("ok", "failed"):
                self._cluster.labels(operation.value, outcome)

    # What is told.

    def serve_model(self, served: Served) -> None:
        """The model is open: create the series that carry its name."""
        self._model = served.model
        self._info.labels(
            served.version,
            served.model,
            served.device,
            served.precision,
            served.decoder,
            served.fingerprint,
            served.graphs,
        ).set(1)
        for histogram in (self._first_token_s, self._per_token_s, self._duration_s):
            histogram.labels(OPERATION, served.model)
        for gauge in (self._vllm_waiting, self._vllm_running, self._vllm_kv):
            gauge.labels(served.model).set(0)
        self._step_bytes.set(served.step_weight_bytes or 0)
        self._memory_rate.set(served.memory_bytes_per_s or 0)
        self._start.ready()

    def move_readiness(self, to: Readiness) -> None:
        """Health went to another state."""
        for state in Readiness:
            self._readiness.labels(state.value).set(state is to)

    def drain_began(self, cause: DrainCause) -> None:
        """The server leaves: told once, of what came first."""
        self._drains.labels(cause.value).inc()

    def cluster_asked(self, operation: ClusterCall, *, failed: bool) -> None:
        """A request to the Kubernetes API came to its end; of a watch, each time that it had to be opened."""
        self._cluster.labels(operation.value, "failed" if failed else "ok").inc()

    def show_load(self, load: Load) -> None:
        """How busy the server is now; told at every change and now and then."""
        self._queue.set(load.queued_turns)
        self._active.set(load.active_turns)
        self._wait_s.set(load.predicted_wait_s)
        self._kv.labels("used").set(load.kv_tokens_used)
        self._kv.labels("free").set(load.kv_tokens_total - load.kv_tokens_used)
        self._kv.labels("host").set(load.kv_tokens_host)
        if self._model is not None:
            self._vllm_waiting.labels(self._model).set(load.queued_turns)
            self._vllm_running.labels(self._model).set(load.active_turns)
            self._vllm_kv.labels(self._model).set(_share(load))

    def read_log_drops(self, dropped: Callable[[], int]) -> None:
        """Where the count of log lines that were dropped is asked for, at each look at the figures."""
        self._log_drops.dropped = dropped

    def page(self) -> type[BaseHTTPRequestHandler]:
        """What answers an HTTP request for the figures."""
        return _PlainPage.factory(self.registry)

    def engine_event(self, event: EngineEvent) -> None:
        """Listener for the engine's events."""
        match event:
            case StepDone(graph=str(graph)):
                self._replays.labels(self._graph_label(graph)).inc()
                self._step_s.labels("replay").observe(event.seconds)
            case StepDone(eager=EagerReason() as reason):
                self._eager.labels(reason.value).inc()
                self._step_s.labels("eager").observe(event.seconds)
            case Progress():
                self._start.progress(event)
                if event.unit == "bytes":
                    self._load_bytes.labels(event.phase).set(event.done)
                    self._load_total_bytes.labels(event.phase).set(event.total)
            case SelfChecked():
                self._checks.labels("sound" if event.sound else "mismatch").inc()
            case PrefillDone():
                self._step_s.labels("prefill").observe(event.seconds)
                if event.eager is not None:
                    self._eager_prefills.labels(event.eager.value).inc()
            case GraphCaptured():
                self._captures.labels(event.outcome.value, event.cause.value).inc()
                self._capture_s.labels(event.cause.value).observe(event.seconds)
                self._pool_bytes.set(event.pool_bytes)
                # A graph that is captured again, as after a change of weights, stands in for the one before.
                self._captured.discard(event.graph)
                if event.outcome is CaptureOutcome.CAPTURED:
                    if not event.prefill:
                        self._replays.labels(self._graph_label(event.graph))
                    self._captured.add(event.graph)
                self._graphs.set(len(self._captured))
            case _:
                pass

    def service_event(self, event: ServiceEvent) -> None:
        """Listener for the service's events."""
        match event:
            case TokenMade():
                self._gap_s.observe(event.gap_s)
                for cause, seconds in event.stalls:
                    self._stall_s.labels(cause.value).inc(seconds)
            case FirstToken():
                self._since_admission_s[event.request_id] = event.since_admission_s
                self._first_token_s.labels(OPERATION, self._model or "").observe(event.since_admission_s)
            case TurnStarted():
                self._queue_s.observe(event.queue_s)
                self._prefix.labels("session_cache").inc(event.cached_tokens)
                self._prefix.labels("prefill").inc(event.prompt_tokens - event.cached_tokens)
                self._tokens.labels("prompt").inc(event.prompt_tokens)
                if event.resumed is not None:
                    self._resumes.labels(event.resumed.value).inc()
            case TurnRefused():
                self._rejections.labels(event.reason.value).inc()
            case TurnEnded():
                self._turn_ended(event)
            case SessionEvicted():
                self._evicted.inc(event.kv_tokens)
            case _:
                pass

    def _turn_ended(self, event: TurnEnded) -> None:
        model = self._model or ""
        self._requests.labels(event.end.value).inc()
        self._tokens.labels("completion").inc(event.completion_tokens)
        self._tokens.labels("discarded").inc(event.discarded_tokens)
        self._duration_s.labels(OPERATION, model).observe(event.duration_s)
        first_s = self._since_admission_s.pop(event.request_id, None)
        if first_s is not None and event.completion_tokens > 1:
            per_token_s = max(0.0, event.duration_s - first_s) / (event.completion_tokens - 1)
            self._per_token_s.labels(OPERATION, model).observe(per_token_s)
        if event.cancel_to_idle_s is not None:
            self._idle_s.observe(event.cancel_to_idle_s)

    def _graph_label(self, graph: str) -> str:
        if graph not in self._graph_labels and len(self._graph_labels) >= MAX_GRAPH_LABELS:
            return "other"
        self._graph_labels.add(graph)
        return graph


class _PlainPage(MetricsHandler):
    """The plain text format, whatever is asked for: in OpenMetrics the library writes `vllm_` for `vllm:`."""

    def do_GET(self) -> None:  # noqa: N802 - the name is the standard library's
        del self.headers["Accept"]
        super().do_GET()


class _LogDrops(Collector):
    """A counter that the log keeps: it must not be told of each line while it has none to spare."""

    def __init__(self) -> None:
        self.dropped: Callable[[], int] = lambda: 0

    def collect(self) -> Iterable[CounterMetricFamily]:
        text = "Log lines that were dropped because nobody read them in time."
        yield CounterMetricFamily("soloist_log_records_dropped", text, value=self.dropped())


def _share(load: Load) -> float:
    return load.kv_tokens_used / load.kv_tokens_total if load.kv_tokens_total else 0.0
