"""What all calls have in common: one end each, whatever the handler does."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from service.events import TurnEnd
from service.ops.logs import JsonLines
from service.rpc.calls import CallInterceptor
from service.rpc.status import INTERNAL_TEXT
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.contention import in_time
from tests.fakes import FakeEngine, endless, saying
from tests.service.running import in_flight, running, until

SECRET = "what nobody may read"
NOTHING: tuple[Any, ...] = ()
CHAT = "/soloist.v1.ChatService/Chat"


def request(content: str = "Hi", **fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(messages=[chat_pb2.Message(role=chat_pb2.ROLE_USER, content=content)], **fields)


class Awkward(chat_pb2_grpc.ChatServiceServicer):
    """Handlers that do what handlers should not."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cleaned_up = False

    async def Chat(  # noqa: N802 - named by the proto
        self, request: chat_pb2.ChatRequest, context: Any
    ) -> AsyncIterator[chat_pb2.ChatEvent]:
        yield chat_pb2.ChatEvent(started=chat_pb2.Started())
        inner = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async def GetLoad(  # noqa: N802 - named by the proto
        self, request: chat_pb2.GetLoadRequest, context: Any
    ) -> chat_pb2.GetLoadResponse:
        raise asyncio.CancelledError

    async def GetServerInfo(  # noqa: N802 - named by the proto
        self, request: chat_pb2.GetServerInfoRequest, context: Any
    ) -> chat_pb2.GetServerInfoResponse:
        raise RuntimeError(SECRET)

    async def Converse(  # noqa: N802 - named by the proto
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[chat_pb2.ChatEvent]:
        for event in NOTHING:
            yield event

    async def CountTokens(  # noqa: N802 - named by the proto
        self, request: chat_pb2.CountTokensRequest, context: Any
    ) -> chat_pb2.CountTokensResponse:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            # A clean-up that takes its time: grpcio's stop() is back before it is over.
            await asyncio.shield(asyncio.sleep(0.3))
            self.cleaned_up = True
        raise AssertionError("unreachable")


@asynccontextmanager
async def awkward_server() -> AsyncIterator[tuple[Awkward, grpc.aio.Server, CallInterceptor, grpc.aio.Channel]]:
    calls = CallInterceptor(write_stall_s=5.0)
    server = grpc.aio.server(interceptors=(calls,))
    servicer = Awkward()
    chat_pb2_grpc.add_ChatServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, server, calls, channel
    await server.stop(None)


async def failure_of(awaitable: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


async def drained(call: Any) -> list[Any]:
    return [event async for event in call]


async def test_rpc_01_clean_up_runs_to_its_end_before_the_server_is_gone() -> None:
    async with awkward_server() as (servicer, server, calls, channel):
        call = chat_pb2_grpc.ChatServiceStub(channel).CountTokens(chat_pb2.CountTokensRequest())
        await asyncio.wait_for(servicer.entered.wait(), 30)
        await server.stop(0.05)
        assert await calls.wait_ended(5)
        assert servicer.cleaned_up
        await failure_of(call)


async def test_rpc_02_every_cancelled_stream_is_counted_once() -> None:
    engine = FakeEngine(answer=endless, slots=1)
    async with running(engine) as app:
        count = app.metrics.registry.get_sample_value
        async with grpc.aio.insecure_channel(app.address) as channel:
            stub = chat_pb2_grpc.ChatServiceStub(channel)
            for place in range(100):
                call = stub.Chat(request(max_tokens=4000))
                for _ in range(1 + place % 3):
                    await call.read()
                call.cancel()
                await until(lambda: in_flight(app) == 0)
        await until(lambda: count("soloist_requests_total", {"reason": "cancelled"}) == 100)
        for end in TurnEnd:
            expected = 100 if end is TurnEnd.CANCELLED else 0
            assert count("soloist_requests_total", {"reason": end.value}) == expected


async def test_rpc_03_an_inner_cancellation_reaches_the_client_within_a_second() -> None:
    async with awkward_server() as (_, _, _, channel):
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        for call in (drained(stub.Chat(request())), stub.GetLoad(chat_pb2.GetLoadRequest())):
            started_s = time.monotonic()
            error = await failure_of(asyncio.wait_for(call, 30))
            assert in_time(time.monotonic() - started_s, 1.0)
            assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_rpc_03_a_worker_that_stops_tells_every_client() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app, grpc.aio.insecure_channel(app.address) as channel:
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        calls = [asyncio.create_task(drained(stub.Chat(request()))) for _ in range(3)]
        await until(lambda: in_flight(app) == 3)
        engine.allow(2)
        stopping = asyncio.create_task(app.worker.stop())
        engine.release()
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        await stopping
    for end in ends:
        if isinstance(end, list):
            assert end[-1].finished.reason == chat_pb2.FINISH_REASON_DRAINING
        else:
            assert isinstance(end, grpc.aio.AioRpcError)
            assert end.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_unexpected_error_is_internal_and_silent(caplog: pytest.LogCaptureFixture) -> None:
    async with awkward_server() as (_, _, _, channel):
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        error = await failure_of(stub.GetServerInfo(chat_pb2.GetServerInfoRequest()))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == INTERNAL_TEXT
    logged = "\n".join(JsonLines().format(record) for record in caplog.records)
    assert "RuntimeError" in logged
    assert "GetServerInfo" in logged
    assert SECRET not in logged


async def test_an_unknown_method_is_named() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        for method in ("/soloist.v1.ChatService/Talk", "/nothing/here"):
            unary: Any = channel.unary_unary(method)
            error = await failure_of(unary(b"", timeout=30))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert method in str(error.details())


async def test_a_call_without_its_request_ends_at_once() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for request in NOTHING:
            yield request

    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        for method in (CHAT, "/soloist.v1.ChatService/GetLoad", "/grpc.health.v1.Health/Check"):
            raw: Any = channel.stream_stream(method)
            error = await failure_of(drained(raw(nothing(), timeout=30)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_log_has_a_line_for_each_call_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "soloist"):
        async with (
            running(FakeEngine(answer=saying("answer-secret"))) as app,
            grpc.aio.insecure_channel(app.address) as channel,
        ):
            stub = chat_pb2_grpc.ChatServiceStub(channel)
            trace = "0af7651916cd43dd8448eb211c80319c"
            metadata = (("traceparent", f"00-{trace}-b7ad6b7169203331-01"), ("x-request-id", "theirs"))
            await drained(stub.Chat(request("question-secret"), metadata=metadata))
            await failure_of(drained(stub.Chat(request("question-secret", top_p=7.0))))
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    calls = [line for line in lines if line["message"] == "call"]

    assert [line["outcome"] for line in calls] == ["OK", "INVALID_FIELD"]
    assert calls[0]["trace_id"] == trace
    assert calls[0]["client_request_id"] == "theirs"
    assert calls[0]["method"] == CHAT
    assert "secret" not in json.dumps(lines)
