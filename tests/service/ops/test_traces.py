"""Turns as spans, at a collector that speaks OTLP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from engine.errors import StepError
from service.app import App, StartError
from service.client import ChatClient, ChatError
from tests.fakes import FakeEngine, saying
from tests.service.running import quick, running

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAID = "WHATWASSAID"


class Collector(otlp_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - named by the proto
        self.requests.append(request)
        return otlp.ExportTraceServiceResponse()

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(0).wait()


def attributes(span: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
        for pair in span.attributes
        if pair.value.WhichOneof("value") != "array_value"
    }


async def test_a_turn_is_a_span_below_its_callers_with_its_phases_below() -> None:
    with collecting() as (collector, endpoint):
        async with running(FakeEngine(answer=saying(SAID)), traces=endpoint) as app:
            metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
            async with ChatClient(app.address, metadata=metadata) as chat:
                answer = await chat.ask(SAID, session_id=SAID)
        spans = {span.name: span for span in collector.spans()}

    whole = spans["chat fake"]
    assert set(spans) == {"chat fake", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert whole.parent_span_id.hex() == PARENT
    assert {spans[name].parent_span_id for name in ("queue", "prefill", "decode")} == {whole.span_id}
    assert whole.start_time_unix_nano == spans["queue"].start_time_unix_nano
    assert spans["queue"].end_time_unix_nano == spans["prefill"].start_time_unix_nano
    assert spans["prefill"].end_time_unix_nano == spans["decode"].start_time_unix_nano
    assert abs(spans["decode"].end_time_unix_nano - whole.end_time_unix_nano) < 1000
    said = attributes(whole)
    assert said["soloist.request_id"] == answer.started.request_id
    assert said["gen_ai.usage.output_tokens"] == answer.finished.completion_tokens == said["soloist.graph_replays"]
    assert all(SAID not in str(request) for request in collector.requests)


@pytest.mark.parametrize(
    "traceparent",
    ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01"],
)
async def test_a_bad_traceparent_begins_a_trace_of_its_own(traceparent: str) -> None:
    with collecting() as (collector, endpoint):
        async with (
            running(traces=endpoint) as app,
            ChatClient(app.address, metadata=(("traceparent", traceparent),)) as chat,
        ):
            await chat.ask("x")
        [whole] = [span for span in collector.spans() if span.name == "chat fake"]

    assert whole.parent_span_id == b""
    assert whole.trace_id.hex() != TRACE


async def test_a_caller_who_does_not_sample_is_not_traced_and_a_failed_turn_is_an_error() -> None:
    with collecting() as (collector, endpoint):
        engine = FakeEngine()
        async with running(engine, traces=endpoint) as app:
            unsampled = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
            async with ChatClient(app.address, metadata=unsampled) as chat:
                await chat.ask("x")
            engine.fail(0, StepError("no"))
            async with ChatClient(app.address) as chat:
                with pytest.raises(ChatError):
                    await chat.ask("x")
        spans = collector.spans()

    assert [span.name for span in spans] == ["queue", "prefill", "chat fake"]
    assert spans[-1].status.code == 2


async def test_a_collector_that_is_away_holds_nobody_up() -> None:
    async with running(traces="http://127.0.0.1:9") as app, ChatClient(app.address) as chat:
        assert (await chat.ask("x", deadline_s=5)).finished.reason == "stop"


async def test_without_the_packages_the_start_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.ops.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    app = App(quick(traces="http://127.0.0.1:4317"), FakeEngine().opener())
    with pytest.raises(StartError, match=r"pip install 'soloist\[otel\]'"):
        await app.start()
