"""ChatClient against a real server with the fake engine, and against a server that fails as it is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from service.client import (
    BadRequestError,
    BrokenStreamError,
    ChatClient,
    ClosedError,
    DeadlineError,
    Delta,
    Finished,
    Message,
    OverloadedError,
    Retries,
    ServerError,
    Started,
    UnavailableError,
)
from service.errors import QueueFullError, TurnFailedError
from service.rpc.servicer import SERVICE_NAME
from service.rpc.status import abort
from soloist.v1 import chat_pb2
from tests.contention import in_time
from tests.fakes import FakeEngine, endless, ids_of, saying
from tests.service.running import in_flight, running, steps, until

QUICK = Retries(attempts=4, first_wait_s=0.001, longest_wait_s=0.002)


async def test_a_stream_gives_typed_events() -> None:
    async with running(FakeEngine(answer=saying("Paris."))) as app, ChatClient(app.address) as chat:
        events = [event async for event in chat.stream([Message("user", "Capital of France?")], seed=3)]

    assert isinstance(events[0], Started)
    assert events[0].seed == 3
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
    assert events[-1].stop_token_id == 2
    assert events[-1].eager_steps == {}


async def test_ask_gives_the_whole_answer_of_a_bare_question() -> None:
    async with running(FakeEngine(answer=saying("Paris."))) as app, ChatClient(app.address) as chat:
        answer = await chat.ask("Capital of France?", logprobs=True, top_logprobs=2)

    assert answer.text == "Paris."
    assert list(answer.token_ids) == ids_of("Paris.")
    assert len(answer.logprobs) == len(answer.token_ids)
    assert len(answer.logprobs[0].top) == 2
    assert answer.finished.completion_tokens == len("Paris.") + 1


async def test_messages_may_be_mappings_and_roles_arrive() -> None:
    async with running() as app, ChatClient(app.address) as chat:
        answer = await chat.ask([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])

    assert "user:U" in answer.text


async def test_stop_texts_end_the_answer_before_them() -> None:
    async with running(FakeEngine(answer=saying("one two three"))) as app, ChatClient(app.address) as chat:
        answer = await chat.ask("count", stop=[" two"])

    assert (answer.text, answer.finished.stop_text) == ("one", " two")


async def test_closing_the_stream_cancels_the_turn() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app, ChatClient(app.address) as chat:
        engine.allow(3)
        async with aclosing(chat.stream("talk")) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
            await steps(engine, 3)
        # A step more at a time, until the server has heard of it: the answer itself has thousands.
        while in_flight(app):
            engine.allow(1)
            await asyncio.sleep(0.005)
    assert engine.decode_steps < 2_000


async def test_a_wrong_field_is_a_typed_error_that_names_it() -> None:
    async with running() as app, ChatClient(app.address) as chat:
        with pytest.raises(BadRequestError) as caught:
            await chat.ask("x", top_p=7.0)

    assert caught.value.field == "top_p"
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda chat: chat.ask("caf\udce9"), "messages[0].content"),
        (lambda chat: chat.ask([{"role": "robot", "content": "x"}]), "messages[0].role"),
        (lambda chat: chat.ask([{"role": "user", "text": "x"}]), "messages[0].text"),
        (lambda chat: chat.ask("x", stop=["\udcff"]), "stop[0]"),
        (lambda chat: chat.ask("x", session_id="\udcff"), "session_id"),
        (lambda chat: chat.ask("x", max_tokens=-1), "request"),
        (lambda chat: chat.count_tokens("\udcff"), "messages[0].content"),
    ],
)
async def test_txt_11_what_cannot_be_sent_is_refused_here(ask: Callable[[ChatClient], Any], field: str) -> None:
    async with ChatClient("127.0.0.1:1") as chat:
        with pytest.raises(BadRequestError) as caught:
            await ask(chat)
    assert caught.value.field == field


async def test_an_unknown_field_is_a_programmers_mistake() -> None:
    async with ChatClient("127.0.0.1:1") as chat:
        with pytest.raises(TypeError, match="temprature is no field"):
            await chat.ask("x", temprature=1.0)  # type: ignore[call-arg]


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with ChatClient("127.0.0.1:1", retries=QUICK) as chat:
        with pytest.raises(UnavailableError):
            await chat.ask("x")


async def test_a_deadline_bounds_all_attempts() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app, ChatClient(app.address) as chat:
        other = asyncio.create_task(chat.ask("first"))
        await until(lambda: in_flight(app) == 1)
        started_s = time.monotonic()
        with pytest.raises((DeadlineError, OverloadedError)):
            await chat.ask("second", deadline_s=0.3)
        assert in_time(time.monotonic() - started_s, 1.0)
        other.cancel()


async def test_information_load_and_counting() -> None:
    async with running() as app, ChatClient(app.address) as chat:
        info, load, count = await chat.server_info(), await chat.load(), await chat.count_tokens("Hi")

    assert (info.model, info.limits["queue_depth"], info.graphs.enabled) == ("fake", 16, True)
    assert (load.active_turns, load.draining) == (0, False)
    assert count > 0


async def test_rpc_06_turns_of_one_channel_are_spread_over_all_addresses() -> None:
    engines = [FakeEngine(answer=saying("x")) for _ in range(2)]
    async with (
        running(engines[0]) as one,
        running(engines[1]) as two,
        ChatClient(f"ipv4:{one.address},{two.address}") as chat,
    ):
        # Both connections must stand before turns can be shared out.
        async with asyncio.timeout(5):
            while not all(engine.prompts for engine in engines):
                await chat.ask("until both have one")
        before = [len(engine.prompts) for engine in engines]
        for number in range(20):
            await chat.ask(f"turn {number}")
        shares = [len(engine.prompts) - so_far for engine, so_far in zip(engines, before, strict=True)]
    assert sum(shares) == 20
    assert min(shares) >= 6


async def test_a_hundred_and_twenty_asked_at_once_on_a_fresh_connection_all_end() -> None:
    engine = FakeEngine(answer=saying("ok"))
    async with running(engine, queue_depth=200) as app, ChatClient(app.address) as chat:
        answers = await asyncio.gather(*(chat.ask("x", deadline_s=30) for _ in range(120)))

    assert {answer.text for answer in answers} == {"ok"}


# A server that fails as it is told.


class Scripted:
    """Each call of Chat does the next thing of `script`: an error to end with, or events to send before ending well."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked_s: list[float] = []
        self.requests: list[chat_pb2.ChatRequest] = []

    async def chat(self, request: chat_pb2.ChatRequest, context: Any) -> AsyncIterator[chat_pb2.ChatEvent]:
        self.asked_s.append(time.monotonic())
        self.requests.append(request)
        for act in self.script.pop(0):
            if isinstance(act, Exception):
                await abort(context, act, "r")
            elif isinstance(act, grpc.StatusCode):
                await context.abort(act, "as told")
            else:
                yield act

    def handler(self) -> grpc.GenericRpcHandler:
        chat: Any = grpc.unary_stream_rpc_method_handler(
            self.chat,
            request_deserializer=chat_pb2.ChatRequest.FromString,
            response_serializer=chat_pb2.ChatEvent.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Chat": chat})


STARTED = chat_pb2.ChatEvent(started=chat_pb2.Started(request_id="r"))
WORD = chat_pb2.ChatEvent(delta=chat_pb2.Delta(text="word", token_ids=[1]))
FINISHED = chat_pb2.ChatEvent(finished=chat_pb2.Finished(reason=chat_pb2.FINISH_REASON_STOP))
WHOLE = (STARTED, WORD, FINISHED)


@asynccontextmanager
async def telling(*script: Any, **options: Any) -> AsyncIterator[tuple[Scripted, ChatClient]]:
    """A server that does as `script` says, and its client."""
    server = grpc.aio.server()
    servicer = Scripted(*script)
    server.add_generic_rpc_handlers((servicer.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with ChatClient(f"127.0.0.1:{port}", **{"retries": QUICK, **options}) as chat:
        yield servicer, chat
    await server.stop(None)


@pytest.mark.parametrize("failure", [(grpc.StatusCode.UNAVAILABLE,), (STARTED, grpc.StatusCode.UNAVAILABLE)])
async def test_it_asks_again_before_the_first_token(failure: tuple[Any, ...]) -> None:
    async with telling(failure, failure, WHOLE) as (server, chat):
        events = [event async for event in chat.stream("x")]

    assert len(server.asked_s) == 3
    assert [type(event) for event in events] == [Started, Delta, Finished]


async def test_it_does_not_ask_again_after_the_first_token() -> None:
    async with telling((STARTED, WORD, grpc.StatusCode.UNAVAILABLE), WHOLE) as (server, chat):
        with pytest.raises(UnavailableError):
            await chat.ask("x")

    assert len(server.asked_s) == 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(grpc.StatusCode.INVALID_ARGUMENT, BadRequestError), (TurnFailedError(), ServerError)],
)
async def test_it_does_not_ask_again_what_would_not_help(failure: Any, kind: type[Exception]) -> None:
    async with telling((failure,), WHOLE) as (server, chat):
        with pytest.raises(kind):
            await chat.ask("x")

    assert len(server.asked_s) == 1


async def test_it_gives_up_after_its_attempts() -> None:
    failure = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
    async with telling(*[failure] * 9) as (server, chat):
        with pytest.raises(OverloadedError):
            await chat.ask("x")

    assert len(server.asked_s) == QUICK.attempts


async def test_it_waits_as_long_as_the_server_says() -> None:
    async with telling((QueueFullError(1, 0.4),), WHOLE) as (server, chat):
        await chat.ask("x")

    first_s, second_s = server.asked_s
    assert second_s - first_s >= 0.4


async def test_it_does_not_wait_beyond_the_deadline() -> None:
    async with telling((QueueFullError(1, 60.0),), WHOLE) as (server, chat):
        started_s = time.monotonic()
        with pytest.raises(OverloadedError) as caught:
            await chat.ask("x", deadline_s=1.0)

    assert in_time(time.monotonic() - started_s, 1.0)
    assert caught.value.retry_after_s == 60.0
    assert caught.value.reason == "QUEUE_FULL"
    assert len(server.asked_s) == 1


async def test_a_reader_whose_client_is_closed_by_another_task_is_told_so() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app, ChatClient(app.address) as chat:
        reading = asyncio.create_task(chat.ask("x"))
        await until(lambda: in_flight(app) == 1)
        engine.allow(3)
        await steps(engine, 3)
        await chat.close()
        with pytest.raises(ClosedError, match="this client was closed"):
            await asyncio.wait_for(reading, 30)
        assert not reading.cancelled()


@pytest.mark.parametrize(
    "asked",
    [
        lambda chat: chat.ask("x"),
        lambda chat: chat.count_tokens("x"),
        lambda chat: chat.server_info(),
        lambda chat: chat.load(),
    ],
)
async def test_a_closed_client_says_so(asked: Callable[[ChatClient], Any]) -> None:
    async with running() as app:
        chat = ChatClient(app.address)
        await chat.close()
        with pytest.raises(ClosedError):
            await asked(chat)


async def test_a_reader_that_is_cancelled_is_cancelled_and_not_told_of_errors() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app, ChatClient(app.address) as chat:
        reading = asyncio.create_task(chat.ask("x"))
        await until(lambda: in_flight(app) == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_a_reason_that_only_a_newer_server_knows_does_no_harm() -> None:
    newer = chat_pb2.ChatEvent(finished=chat_pb2.Finished(reason=99))  # type: ignore[arg-type]
    async with telling((STARTED, WORD, newer)) as (_, chat):
        answer = await chat.ask("x")

    assert answer.finished.reason == "unknown"


async def test_a_stream_without_its_last_event_is_broken() -> None:
    async with telling((STARTED, WORD)) as (_, chat):
        with pytest.raises(BrokenStreamError):
            await chat.ask("x")


def test_waits_grow_within_bounds() -> None:
    retries = Retries(attempts=9, first_wait_s=0.1, longest_wait_s=1.0)

    for attempt in range(1, 9):
        whole = min(1.0, 0.1 * 2 ** (attempt - 1))
        assert all(whole / 2 <= retries.wait_s(attempt, None) <= whole for _ in range(50))
    assert retries.wait_s(1, 7.0) == 7.0


def test_the_library_needs_no_torch_and_no_server() -> None:
    program = """import sys, service.client
print(*(name for name in sys.modules if name.startswith(("torch", "engine", "service."))))"""
    environment = {"PYTHONPATH": ":".join(path or "." for path in sys.path), "PATH": ""}

    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)

    assert {".".join(name.split(".")[:2]) for name in shown.stdout.split()} == {"service.client"}
