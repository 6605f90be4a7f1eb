"""One ChatClient for many readers: keys of their own, calls without a turn, answers that another client began."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from service.client import (
    BrokenAnswer,
    ChatClient,
    Delta,
    Event,
    Finished,
    ResumeRefusedError,
    Started,
    UnauthenticatedError,
    UnavailableError,
)
from service.keys import hash_of, new_key
from tests.fakes import FakeEngine, saying
from tests.running_server import free_ports
from tests.service.running import running
from tests.service.test_client import QUICK

ANSWER = "Grüße, 안녕! one two three four"


def nobody() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


async def test_calls_without_a_turn_ask_the_next_server_where_one_is_away() -> None:
    async with running() as app, ChatClient([nobody(), nobody(), app.address], retries=QUICK) as chat:
        assert (await chat.server_info()).model == "fake"
        assert not (await chat.load()).draining
        assert await chat.count_tokens("x") > 0


async def test_calls_without_a_turn_fail_where_all_are_away() -> None:
    async with ChatClient([nobody(), nobody()], retries=QUICK) as chat:
        with pytest.raises(UnavailableError):
            await chat.server_info()


async def test_two_callers_share_connections_and_not_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    key = new_key()
    keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n", encoding="utf-8")
    async with running(FakeEngine(answer=saying("Hi")), keys=str(keys)) as app, ChatClient(app.address) as chat:
        known, unknown = chat.speaking_as(key), chat.speaking_as(None)
        assert (await known.ask("x")).text == "Hi"
        with pytest.raises(UnauthenticatedError):
            await unknown.ask("x")
        with pytest.raises(UnauthenticatedError):
            await chat.speaking_as("wrong").server_info()


async def begun(chat: ChatClient, tokens: int) -> tuple[bytes, list[int], str]:
    """The first `tokens` tokens of an answer: its resume token, their ids, their text."""
    token, ids, text = b"", list[int](), ""
    async with aclosing(chat.stream("x", temperature=1.0)) as events:
        async for event in events:
            if isinstance(event, Started):
                token = event.resume_token
            elif isinstance(event, Delta):
                ids += event.token_ids
                text += event.text
            if len(ids) >= tokens:
                break
    return token, ids, text


async def rest(chat: ChatClient, broken: BrokenAnswer) -> list[Event]:
    return [event async for event in chat.stream("x", temperature=1.0, broken=broken)]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


@pytest.mark.parametrize("with_ids", [True, False])
async def test_another_client_goes_on_with_an_answer_on_another_server(*, with_ids: bool) -> None:
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(running(FakeEngine(answer=saying(ANSWER)), max_active_turns=2))
            for _ in range(2)
        ]
        async with ChatClient(one.address) as chat:
            token, ids, text = await begun(chat, 9)
        async with ChatClient([nobody(), other.address], retries=QUICK) as chat:
            events = await rest(chat, BrokenAnswer(token, tuple(ids) if with_ids else ()))
    start, end = events[0], events[-1]
    assert isinstance(start, Started)
    assert start.resume_mode == "exact"
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    assert said(events) == (ANSWER[len(text) :] if with_ids else ANSWER)


async def test_an_answer_of_other_numerics_does_not_go_on() -> None:
    async with AsyncExitStack() as stack:
        engines = [FakeEngine(answer=saying(ANSWER)) for _ in range(2)]
        engines[1].info = replace(engines[1].info, fingerprint="other")
        one, other = [await stack.enter_async_context(running(engine)) for engine in engines]
        async with ChatClient(one.address) as chat:
            token, _, _ = await begun(chat, 4)
        async with ChatClient([other.address], retries=QUICK) as chat:
            with pytest.raises(ResumeRefusedError):
                await rest(chat, BrokenAnswer(token))
        async with ChatClient([other.address, one.address], retries=QUICK) as chat:
            assert said(await rest(chat, BrokenAnswer(token))) == ANSWER
