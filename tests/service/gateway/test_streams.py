"""Streams whose reader leaves, sleeps, comes back elsewhere, or whose gateway leaves."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import FatalDeviceError
from service.events import TurnEnd
from service.gateway.resume_state import Standing, read_standing
from tests.fakes import endless, ids_of, saying
from tests.service.gateway.running import CHAT, HELLO, Gateway, NotingEngine, Read, gateway, read
from tests.service.running import in_flight, running, steps, until

ANSWER = "Grüße, 안녕! one two three four"


@pytest.mark.parametrize("stream", [True, False])
async def test_promise_06_a_reader_who_leaves_costs_one_more_step(*, stream: bool) -> None:
    engine = NotingEngine(answer=endless)
    async with running(engine) as app, gateway(app.address) as gate:
        engine.hold()
        engine.allow(5)
        asking = asyncio.create_task(read(gate.web, HELLO) if stream else gate.ask(HELLO))
        await steps(engine, 5)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: gate.backend.turns == 0)
        engine.allow(1)
        await until(lambda: in_flight(app) == 0)
        assert engine.decode_steps <= 6


async def test_a_reader_who_closes_only_its_own_direction_has_left() -> None:
    engine = NotingEngine(answer=endless)
    body = json.dumps({**HELLO, "stream": True}).encode()
    async with running(engine) as app, gateway(app.address) as gate:
        engine.hold()
        with _connect(gate) as reader:
            reader.sendall(_head(len(body)) + body)
            await until(lambda: in_flight(app) == 1)
            reader.shutdown(socket.SHUT_WR)
            await until(lambda: gate.backend.turns == 0)
        engine.release()
        await until(lambda: in_flight(app) == 0)


async def test_a_reader_who_leaves_while_waiting_leaves_the_queue() -> None:
    engine = NotingEngine(answer=endless)
    async with running(engine) as app, gateway(app.address) as gate:
        engine.hold()
        first = asyncio.create_task(read(gate.web, HELLO))
        await until(engine.held.is_set)
        second = asyncio.create_task(read(gate.web, HELLO))
        await until(lambda: in_flight(app) == 2)
        second.cancel()
        await until(lambda: in_flight(app) == 1)
        first.cancel()
        await until(lambda: gate.backend.turns == 0)
        engine.release()
        await until(lambda: in_flight(app) == 0)


async def test_a_slow_reader_is_slow_to_the_server_too() -> None:
    """Nothing gathers in the gateway: the server sees a reader who takes nothing, and ends the turn in its time."""
    engine = NotingEngine(answer=endless, context=1 << 20)
    body = json.dumps({**HELLO, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    async with running(engine, write_stall_s=0.3) as app, gateway(app.address, narrow=True) as gate:
        with _connect(gate) as reader:
            reader.sendall(_head(len(body)) + body)
            await until(lambda: in_flight(app) == 1)
            await until(lambda: in_flight(app) == 0, 20.0)
            registry = app.metrics.registry
            assert registry.get_sample_value("soloist_requests_total", {"reason": TurnEnd.SLOW_READER}) == 1


async def test_a_reader_who_sleeps_for_good_is_left() -> None:
    engine = NotingEngine(answer=lambda _ids: ids_of("x" * 3_500))
    body = json.dumps({**HELLO, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    async with running(engine) as app, gateway(app.address, narrow=True, write_stall_s=0.3) as gate:
        with _connect(gate) as reader:
            reader.sendall(_head(len(body)) + body)
            await until(lambda: gate.backend.turns == 1)
            await until(lambda: gate.backend.turns == 0, 10.0)
            await until(lambda: in_flight(app) == 0)


@pytest.mark.parametrize("characters", [0, 1, 7, 9, 20, len(ANSWER)])
async def test_promise_08_another_gateway_gives_exactly_the_rest(characters: int) -> None:
    body = {**HELLO, "temperature": 1.0, "stream_options": {"include_usage": True}}
    async with AsyncExitStack() as stack:
        apps = [
            await stack.enter_async_context(running(NotingEngine(answer=saying(ANSWER)), max_active_turns=2))
            for _ in range(2)
        ]
        one, two = [await stack.enter_async_context(gateway(app.address)) for app in apps]
        begun = await read(one.web, body, characters=characters)
        assert not begun.whole
        rest = await read(two.web, body, after=begun.last_id)
        again = await read(two.web, body, after=rest.last_id)
    assert begun.text + rest.text == ANSWER
    assert rest.whole
    assert rest.events[-2].json["usage"]["completion_tokens"] == len(ids_of(ANSWER)) + 1
    assert (again.text, again.whole) == ("", True), "who has it all gets its end again"


async def test_logprobs_of_what_is_known_are_not_told_twice() -> None:
    body = {**HELLO, "logprobs": True}
    async with running(NotingEngine(answer=saying("abcdef"))) as app, gateway(app.address) as gate:
        begun = await read(gate.web, body, characters=2)
        rest = await read(gate.web, body, after=begun.last_id)
    told = [
        entry["token"]
        for event in rest.events
        if event.data != "[DONE]"
        for choice in event.json["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert begun.text + "".join(told) == "abcdef"


async def test_other_words_or_other_numerics_are_refused_and_not_mixed() -> None:
    engines = [NotingEngine(answer=saying(ANSWER)), NotingEngine(answer=saying("Grüße, other words"))]
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(running(engine, max_active_turns=2)) for engine in engines]
        one, two = [await stack.enter_async_context(gateway(app.address)) for app in apps]
        begun = await read(one.web, HELLO, characters=20)
        other = await read(two.web, HELLO, after=begun.last_id)
        assert other.events[-1].kind == "error"
        assert other.events[-1].json["error"]["code"] == "resume_refused"
        assert other.text == ""
        engines[1].info = replace(engines[1].info, fingerprint="other")
    async with running(engines[1]) as app, gateway(app.address) as gate:
        refused = await read(gate.web, HELLO, after=begun.last_id)
        assert refused.status == 409
        assert refused.events[-1].json["error"]["code"] == "other_numerics"
        changed = {"messages": [{"role": "user", "content": "y"}]}
        engines[1].info = replace(engines[1].info, fingerprint="fake-fingerprint")
        refused = await read(gate.web, changed, after=begun.last_id)
        assert refused.status == 400
        assert refused.events[-1].json["error"]["param"] == "messages"


@pytest.mark.parametrize("given", ["x", "AAAA", "!!!!", "A" * 5000, Standing(b"token", 1, 1, b"12345678").encoded()])
async def test_event_ids_that_are_none_of_ours(given: str) -> None:
    async with running() as app, gateway(app.address) as gate:
        refused = await read(gate.web, HELLO, after=given)
    assert refused.status == 400
    assert refused.events[-1].json["error"]["param"] == "Last-Event-ID"


@pytest.mark.parametrize("max_tokens", [None, 50])
async def test_an_event_id_of_more_than_the_answer_may_have_is_refused_before_it_plays(max_tokens: int | None) -> None:
    engine = NotingEngine(answer=saying(ANSWER))
    body = HELLO if max_tokens is None else {**HELLO, "max_tokens": max_tokens}
    async with running(engine) as app, gateway(app.address) as gate:
        begun = await read(gate.web, body, characters=20)
        standing, most = read_standing(begun.last_id), max_tokens or engine.info.context
        too_many = [replace(standing, tokens=count) for count in (most + 1, 2**32 - 1)]
        for wrong in (*too_many, replace(standing, chars=2**32 - 1)):
            refused = await read(gate.web, body, after=wrong.encoded())
            assert refused.status == 400
            assert refused.events[-1].json["error"]["param"] == "Last-Event-ID"
        assert len(engine.params) == 1
        assert (await read(gate.web, body, after=begun.last_id)).whole


def test_an_event_id_holds_what_it_was_made_of() -> None:
    standing = Standing(b"\x01token\xff", 70_000, 300_000, b"8 bytes.")
    assert read_standing(standing.encoded()) == standing
    assert standing.encoded().isascii()


async def test_a_gateway_that_leaves_lets_answers_end_and_says_so_first() -> None:
    engine = NotingEngine(answer=saying(ANSWER))
    async with running(engine, max_active_turns=2) as app, gateway(app.address, propagation_s=0.05) as gate:
        engine.hold()
        engine.allow(3)
        reading = asyncio.create_task(read(gate.web, HELLO))
        await steps(engine, 3)
        gate.server.leave(0.05)
        assert (await gate.web.get("/readyz")).status_code == 503
        assert (await gate.web.get("/healthz")).status_code == 200
        await until(lambda: gate.server.should_exit)
        engine.release()
        assert (await reading).text == ANSWER


async def test_what_does_not_end_in_time_is_told_and_goes_on_at_another_gateway() -> None:
    engine = NotingEngine(answer=saying(ANSWER))
    async with running(engine, max_active_turns=2) as app, gateway(app.address) as other:
        async with gateway(app.address) as gate:
            engine.hold()
            engine.allow(4)
            begun = Read()
            reading = asyncio.create_task(read(gate.web, HELLO, into=begun))
            await until(lambda: len(begun.text) > 1)
            gate.server.leave(0.0)
            gate.server.leave(0.0)
            await reading
        assert (begun.events[-1].kind, begun.events[-1].json["error"]["code"]) == ("error", "draining")
        engine.release()
        rest = await read(other.web, HELLO, after=begun.last_id)
    assert begun.text + rest.text == ANSWER


async def test_a_server_that_leaves_with_nobody_to_go_on_is_an_error_of_the_stream() -> None:
    engine = NotingEngine(answer=saying(ANSWER))
    async with running(engine) as app, gateway(app.address) as gate:
        engine.fail(4, FatalDeviceError("the device is lost"))
        broken = await read(gate.web, HELLO)
    assert not broken.whole
    assert broken.events[-1].kind == "error"
    assert broken.events[-1].json["error"]["type"] == "server_error"


def _connect(gate: Gateway) -> socket.socket:
    host, _, port = gate.url.removeprefix("http://").partition(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((host, int(port)))
    return reader


def _head(length: int) -> bytes:
    lines: list[Any] = [
        f"POST {CHAT} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode()
