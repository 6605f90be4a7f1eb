"""ChatClient over several servers, one of which leaves in the middle of an answer: the reader sees one answer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.config import EngineConfig
from engine.errors import FatalDeviceError
from service.app import App
from service.client import (
    BrokenStreamError,
    ChatClient,
    DeadlineError,
    Delta,
    Event,
    Finished,
    Resumed,
    ResumeRefusedError,
    Retries,
    Started,
    UnavailableError,
)
from service.client.servers import addresses
from soloist.v1 import chat_pb2
from tests.checkpoints import Sizes, write_tiny_folder
from tests.fakes import FakeEngine, saying
from tests.running_server import RunningServer, start_server
from tests.service.running import quick, running
from tests.service.test_client import QUICK, telling

ANSWER = "Grüße, 안녕! one two three four"
TOKENS = len(ANSWER.encode())


class Two:
    """Two servers of one model. The first plays a token when it is allowed to."""

    def __init__(self, engines: list[FakeEngine], apps: list[App]) -> None:
        self.engines, self.apps = engines, apps
        self.addresses = [app.address for app in apps]


@asynccontextmanager
async def two(second: str = "fake-fingerprint") -> AsyncIterator[Two]:
    engines = [FakeEngine(answer=saying(ANSWER)) for _ in range(2)]
    engines[1].info = replace(engines[1].info, fingerprint=second)
    async with AsyncExitStack() as stack:
        yield Two(engines, [await stack.enter_async_context(running(engine)) for engine in engines])


async def read(chat: ChatClient, **sampling: Any) -> list[Event]:
    return [event async for event in chat.stream("x", **sampling)]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def ids(events: list[Event]) -> list[int]:
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]


def resumed(events: list[Event]) -> list[Resumed]:
    return [event for event in events if isinstance(event, Resumed)]


def check_one_answer(events: list[Event]) -> Finished:
    assert isinstance(events[0], Started)
    assert sum(isinstance(event, Started) for event in events) == 1
    end = events[-1]
    assert isinstance(end, Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert text(events) == ANSWER
    assert end.completion_tokens == len(ids(events)) + 1
    return end


async def read_until_lost(pair: Two, chat: ChatClient, tokens: int, lose: Any) -> list[Event]:
    """Reads `tokens` tokens of the first server, loses it, and reads on."""
    pair.engines[0].hold()
    pair.engines[0].allow(tokens)
    events: list[Event] = []
    async with aclosing(chat.stream("x", stop=["two four"])) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, Delta) and len(ids(events)) == tokens and not resumed(events):
                await lose()
    return events


@pytest.mark.parametrize("tokens", [1, 4, 7, 11, 22, TOKENS])
async def test_promise_08_a_server_that_is_lost_after_any_token_costs_no_word(tokens: int) -> None:
    async with two() as pair, ChatClient(pair.addresses, retries=QUICK) as chat:

        async def lose() -> None:
            pair.engines[0].die(FatalDeviceError("the device is lost"))

        events = await read_until_lost(pair, chat, tokens, lose)
        check_one_answer(events)
        (again,) = resumed(events)
        assert (again.mode, again.target, again.tokens) == ("exact", pair.addresses[1], tokens)
        assert again.cause == "ENGINE_LOST"
        assert pair.engines[1].decode_steps == TOKENS + 1


async def test_a_server_that_drains_hands_its_reader_on() -> None:
    async with two() as pair, ChatClient(",".join(pair.addresses), retries=QUICK) as chat:

        async def drain() -> None:
            pair.apps[0].worker.drain(0.0)
            pair.engines[0].allow(1)

        events = await read_until_lost(pair, chat, 5, drain)
        check_one_answer(events)
        assert [again.cause for again in resumed(events)] == ["draining"]
        assert (await chat.ask("x")).resumed == (), "the next turn goes where the last one ended"


async def test_where_no_server_goes_on_the_readers_draining_answer_ends_as_such() -> None:
    async with two() as pair, ChatClient(pair.addresses[0], retries=QUICK) as chat:

        async def drain() -> None:
            pair.apps[0].worker.drain(0.0)
            pair.engines[0].allow(1)

        with pytest.raises(UnavailableError) as lost:
            await read_until_lost(pair, chat, 5, drain)
        assert lost.value.reason == "DRAINING"
    async with two() as pair, ChatClient(pair.addresses, resume="off") as chat:
        events = await read_until_lost(pair, chat, 5, lambda: drained(pair))
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "draining"
        assert events[-1].resume_token


async def drained(pair: Two) -> None:
    pair.apps[0].worker.drain(0.0)
    pair.engines[0].allow(1)


async def test_other_numerics_are_refused_unless_other_words_are_allowed() -> None:
    async with two(second="others") as pair, ChatClient(pair.addresses, retries=QUICK) as chat:
        with pytest.raises(ResumeRefusedError, match="made with numerics fake-fingerprint"):
            await read_until_lost(pair, chat, 5, lambda: drained(pair))
    async with two(second="others") as pair, ChatClient(pair.addresses, retries=QUICK, resume="fast") as chat:
        events = await read_until_lost(pair, chat, 5, lambda: drained(pair))
        check_one_answer(events)
        assert [again.mode for again in resumed(events)] == ["fast"]


# A server that fails as it is told.


def started(token: bytes = b"t", mode: int = 0) -> chat_pb2.ChatEvent:
    return chat_pb2.ChatEvent(started=chat_pb2.Started(request_id="r", resume_token=token, resume_mode=mode))  # type: ignore[arg-type]


def delta(index: int, text: str = "w") -> chat_pb2.ChatEvent:
    return chat_pb2.ChatEvent(delta=chat_pb2.Delta(index=index, text=text, token_ids=[index + 10]))


STOPPED = chat_pb2.ChatEvent(finished=chat_pb2.Finished(reason=chat_pb2.FINISH_REASON_STOP))
AWAY = grpc.StatusCode.UNAVAILABLE
EXACT = chat_pb2.RESUME_MODE_EXACT


@pytest.mark.parametrize("failure", [AWAY, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, None])
async def test_whatever_the_way_makes_of_a_break_it_is_resumed(failure: grpc.StatusCode | None) -> None:
    first = (started(), delta(0), delta(1), *([] if failure is None else [failure]))
    async with telling(first, (started(b"t2", EXACT), delta(2), STOPPED)) as (server, chat):
        events = await read(chat, temperature=0.5)
    assert text(events) == "www"
    assert len(resumed(events)) == 1
    again = server.requests[1]
    assert (again.resume.resume_token, list(again.resume.token_ids), again.resume.mode) == (b"t", [10, 11], EXACT)
    assert again.temperature == 0.5


async def test_a_break_of_what_was_resumed_is_resumed_with_all_ids() -> None:
    parts = [(started(mode=EXACT if n else 0), delta(n), AWAY) for n in range(5)]
    async with telling(*parts, (started(mode=EXACT), delta(5), STOPPED)) as (server, chat):
        events = await read(chat)
    assert text(events) == "w" * 6
    assert [again.tokens for again in resumed(events)] == [1, 2, 3, 4, 5]
    assert list(server.requests[5].resume.token_ids) == [10, 11, 12, 13, 14]


DRAINING = chat_pb2.ChatEvent(finished=chat_pb2.Finished(reason=chat_pb2.FINISH_REASON_DRAINING, resume_token=b"t"))


async def test_a_server_that_drains_before_it_said_anything_is_not_told_of() -> None:
    script = ([DRAINING], [delta(0), DRAINING], [DRAINING], [delta(1), STOPPED])
    async with telling(*((started(), *acts) for acts in script)) as (server, chat):
        events = await read(chat)
    assert [type(event) for event in events] == [Started, Delta, Resumed, Delta, Finished]
    assert [bool(request.HasField("resume")) for request in server.requests] == [False, False, True, True]


async def test_attempts_are_bounded_where_no_token_comes_and_in_all() -> None:
    async with telling((started(), delta(0), AWAY), *[(AWAY,)] * 9) as (server, chat):
        with pytest.raises(UnavailableError):
            await read(chat)
    assert len(server.requests) == QUICK.attempts
    parts = [(started(mode=EXACT if n else 0), delta(n), AWAY) for n in range(9)]
    async with telling(*parts, retries=replace(QUICK, resumes=3)) as (server, chat):
        with pytest.raises(UnavailableError):
            await read(chat)
    assert len(server.requests) == 4


async def test_a_deadline_bounds_resuming_too() -> None:
    slow = Retries(attempts=50, first_wait_s=0.2, longest_wait_s=0.2)
    async with telling((started(), delta(0), AWAY), *[(AWAY,)] * 50, retries=slow) as (server, chat):
        with pytest.raises((UnavailableError, DeadlineError)):
            await read(chat, deadline_s=0.5)
    assert len(server.requests) < 6


@pytest.mark.parametrize("index", [0, 2])
async def test_a_repeat_or_a_gap_is_no_answer(index: int) -> None:
    async with telling((started(), delta(0), AWAY), (started(mode=EXACT), delta(index))) as (_, chat):
        with pytest.raises(BrokenStreamError, match=f"token {index} came where token 1 was due"):
            await read(chat)


def test_addresses_are_a_list_or_a_text() -> None:
    assert addresses("a:1, b:2,a:1") == ["a:1", "b:2"]
    assert addresses(["a:1", "b:2"]) == ["a:1", "b:2"]
    assert addresses("ipv4:10.0.0.1:1,10.0.0.2:1") == ["ipv4:10.0.0.1:1,10.0.0.2:1"]
    with pytest.raises(ValueError, match="needs the address"):
        addresses(" ,")


# A real engine in a process of its own, which is killed, and in this one, which goes on.

CONFIG = {"device": "cpu", "threads": 1, "prefill_chunk": 16}
NO_END = dict.fromkeys(range(8), -100.0)
WORDS: dict[str, Any] = {"max_tokens": 200, "temperature": 0.8, "seed": 11, "logit_bias": NO_END}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_folder(tmp_path / "model", sizes=Sizes(layers=4, width=128, context=256))


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in CONFIG.items()]
    with start_server("--model", str(model), *flags, log=tmp_path / "log") as server:
        yield server


@pytest.fixture
async def app(model: Path) -> AsyncIterator[App]:
    import torch

    threads = torch.get_num_threads()
    app = App(quick(engine=EngineConfig(model=str(model), **CONFIG)))  # type: ignore[arg-type]
    await app.start()
    await app.ready()
    yield app
    await app.close()
    torch.set_num_threads(threads)


async def test_promise_08_a_process_killed_hard_costs_no_word(process: RunningServer, app: App) -> None:
    async with ChatClient(app.address) as chat:
        whole = await chat.ask("Tell me", **WORDS)
    assert len(whole.token_ids) == WORDS["max_tokens"]
    async with ChatClient([process.target, app.address]) as chat:
        events: list[Event] = []
        async with aclosing(chat.stream("Tell me", **WORDS)) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, Delta) and process.process.poll() is None:
                    process.process.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(process.process.wait)
    assert ids(events) == list(whole.token_ids)
    assert text(events) == whole.text
    assert [(again.mode, again.target) for again in resumed(events)] == [("exact", app.address)]
