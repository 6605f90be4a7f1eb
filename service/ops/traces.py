"""OpenTelemetry traces: the only importer of its packages, and imported only where the operator names a collector.

A turn is a span `chat MODEL` below the caller's (`traceparent`), with children queue, prefill and decode. They are made
once the turn has ended, from what it told: nothing waits for them. They carry counts and times, and nothing that was
said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.events import FirstToken, ServiceEvent, TurnAdmitted, TurnEnd, TurnEnded, TurnStarted

_BAD_ENDS = frozenset({TurnEnd.FAILED, TurnEnd.ENGINE_LOST, TurnEnd.SLOW_READER, TurnEnd.EXPIRED})
_SEND_S = 2.0  # with all its attempts: a collector that is away must not hold up a server that leaves


@dataclass(slots=True)
class _Turn:
    """What is known of a turn that has not ended. `since_ns` is the wall clock at its admission."""

    trace: str
    since_ns: int
    queue_s: float | None = None
    prefill_s: float | None = None
    cached_tokens: int = 0


class Traces:
    """Hears what happens to turns, and tells a collector. All calls from the event loop.

    Args:
        endpoint: of an OTLP collector that speaks gRPC, such as http://localhost:4317.
        wall_ns: the time of day, nanoseconds.
    """

    def __init__(self, endpoint: str, version: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        # OTEL_* variables that the SDK reads by itself may add attributes, headers and sampling.
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "soloist", "service.version": version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_SEND_S)))
        self._tracer = self._provider.get_tracer("soloist", version)
        self._wall_ns = wall_ns
        self._turns: dict[str, _Turn] = {}
        self.model = ""

    def service_event(self, event: ServiceEvent) -> None:
        """Listener for the service's events."""
        match event:
            case TurnAdmitted():
                self._turns[event.request_id] = _Turn(event.trace, self._wall_ns())
            case TurnStarted() if event.request_id in self._turns:
                turn = self._turns[event.request_id]
                turn.queue_s, turn.cached_tokens = event.queue_s, event.cached_tokens
            case FirstToken() if event.request_id in self._turns:
                self._turns[event.request_id].prefill_s = event.prefill_s
            case TurnEnded() if event.request_id in self._turns:
                self._tell(self._turns.pop(event.request_id), event)
            case _:
                pass

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, for `timeout_s` at most. Blocks."""
        # The SDK itself would go on for 30 s where a collector takes its time over every batch.
        sending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sending.start()
        sending.join(timeout_s)

    def _tell(self, turn: _Turn, end: TurnEnded) -> None:
        whole = self._tracer.start_span(
            f"chat {self.model}".rstrip(),
            context=TraceContextTextMapPropagator().extract({"traceparent": turn.trace} if turn.trace else {}),
            kind=trace.SpanKind.SERVER,
            start_time=turn.since_ns,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": self.model,
                "gen_ai.usage.input_tokens": end.prompt_tokens,
                "gen_ai.usage.output_tokens": end.completion_tokens,
                "gen_ai.response.finish_reasons": [end.end.value],
                "soloist.request_id": end.request_id,
                "soloist.cached_tokens": turn.cached_tokens,
                "soloist.graph_replays": end.replays,
                "soloist.eager_steps": sum(end.eager_steps.values()),
            },
        )
        if end.end in _BAD_ENDS:
            whole.set_status(trace.StatusCode.ERROR, end.end.value)
        below = trace.set_span_in_context(whole)
        at_s = 0.0
        for name, seconds in self._phases(turn, end):
            child = self._tracer.start_span(name, context=below, start_time=_ns(turn, at_s))
            at_s += seconds
            child.end(_ns(turn, at_s))
        whole.end(_ns(turn, end.duration_s))

    @staticmethod
    def _phases(turn: _Turn, end: TurnEnded) -> list[tuple[str, float]]:
        """Each phase that was reached, and how long it took; the last one took the rest."""
        if turn.queue_s is None:
            return [("queue", end.duration_s)]
        if turn.prefill_s is None:
            return [("queue", turn.queue_s), ("prefill", max(0.0, end.duration_s - turn.queue_s))]
        decode_s = max(0.0, end.duration_s - turn.queue_s - turn.prefill_s)
        return [("queue", turn.queue_s), ("prefill", turn.prefill_s), ("decode", decode_s)]


def _ns(turn: _Turn, after_s: float) -> int:
    return turn.since_ns + round(after_s * 1e9)
