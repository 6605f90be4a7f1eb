"""Health follows readiness, for the whole server and by name; nobody who watches can hold it up."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.ops.health import Health, Question, Readiness
from service.rpc.health import HealthServicer
from service.rpc.server import REFLECTION_V1
from service.rpc.servicer import SERVICE_NAME
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.contention import contention
from tests.fakes import FakeEngine, endless
from tests.service.running import in_flight, running, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ROUNDS = 3


async def status_of(channel: grpc.aio.Channel, service: str = "") -> int:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def test_check_knows_the_server_and_its_service_by_name() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        assert await status_of(channel) == SERVING
        assert await status_of(channel, SERVICE_NAME) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status_of(channel, "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_every_probe_has_an_answer_by_name_on_the_first_port_too() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        assert [await status_of(channel, question) for question in Question] == [SERVING] * 3
        app.health.move(Readiness.DRAINING)
        assert [await status_of(channel, question) for question in Question] == [NOT_SERVING, SERVING, SERVING]


async def test_watch_tells_each_change() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        call: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert (await call.read()).status == SERVING
        app.health.move(Readiness.DRAINING)
        assert (await asyncio.wait_for(call.read(), 30)).status == NOT_SERVING
        call.cancel()


async def test_a_watcher_of_an_unknown_service_is_told_so_and_waits() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        call: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        call.cancel()


async def test_a_watcher_who_left_is_forgotten() -> None:
    health = Health()
    no_context: Any = None
    watching: Any = HealthServicer(health, ()).Watch(health_pb2.HealthCheckRequest(), no_context)
    await anext(watching)
    await watching.aclose()
    health.move(Readiness.SERVING)
    assert not health._listeners


async def test_promise_22_health_answers_while_the_queue_is_full_and_tokens_flow() -> None:
    engine = FakeEngine(answer=endless, context=1 << 16)
    async with running(engine, queue_depth=4) as app, grpc.aio.insecure_channel(app.address) as channel:
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        message = chat_pb2.Message(role=chat_pb2.ROLE_USER, content="x" * 4000)

        async def talk() -> None:
            async for _ in stub.Chat(chat_pb2.ChatRequest(messages=[message])):
                pass

        before = await asyncio.to_thread(contention)
        talks = [asyncio.create_task(talk()) for _ in range(5)]
        await until(lambda: in_flight(app) == 5, 30)
        # A neighbour's burst spoils a round and not all of them; a loop that is held up by tokens spoils each.
        late_s = min([await late_answer_s(channel) for _ in range(ROUNDS)])
        for talk_ in talks:
            talk_.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await until(lambda: in_flight(app) == 0, 30)
        busy = max(before, await asyncio.to_thread(contention))

    assert late_s <= 0.05 * busy


async def late_answer_s(channel: grpc.aio.Channel) -> float:
    """How long one answer of a hundred takes at least, of three hundred."""
    seconds = []
    for _ in range(300):
        asked_s = time.monotonic()
        assert await status_of(channel) == SERVING
        seconds.append(time.monotonic() - asked_s)
    return statistics.quantiles(seconds, n=100)[98]


async def test_reflection_lists_the_services_under_both_names() -> None:
    async with running() as app, grpc.aio.insecure_channel(app.address) as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        ways: list[Any] = [
            reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo,
            channel.stream_stream(
                f"/{REFLECTION_V1}/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            ),
        ]
        for way in ways:
            answers = [answer async for answer in way(iter([asked]))]
            names = {service.name for service in answers[0].list_services_response.service}
            assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


async def test_reflection_can_be_switched_off() -> None:
    async with running(reflection=False) as app, grpc.aio.insecure_channel(app.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [answer async for answer in stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest()]))]
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
