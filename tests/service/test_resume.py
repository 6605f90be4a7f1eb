"""Resume tokens, and answers that go on from them: over the fake engine, so that every break is a chosen one."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import InvalidRequestError, ReplayError
from engine.history import Made, Resumption, Segment
from engine.params import SamplingParams
from service.errors import OtherNumericsError
from service.events import Delta, Finished, FinishReason, ResumeMode, Started, TurnEvent, TurnRequest, TurnStarted
from service.resume import MAX_TOKEN_BYTES, ResumeToken, check_same_turn, make_token, open_token
from tests.fakes import FakeEngine, endless, ids_of, saying
from tests.service.core import Core, finished, ids, running, text

HISTORY = (Segment(Made.PREFILL, 30, 30), Segment(Made.DECODE, 7, 1), Segment(Made.PREFILL, 3, 16))
SAMPLING = SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9, seed=2**64 - 1, logit_bias={7: 1.5, 3: -2.0})
TURN = TurnRequest("r", (5, 6, 7), SAMPLING, stop=("x",))


def token_of(turn: TurnRequest = TURN, history: Sequence[Segment] = HISTORY, fingerprint: str = "here") -> ResumeToken:
    return open_token(make_token(turn, fingerprint, history, 0))


def test_a_token_brings_back_what_it_was_made_of() -> None:
    token = open_token(make_token(TURN, "here", HISTORY, 4))

    assert (token.fingerprint, token.history, token.read) == ("here", HISTORY, 4)
    assert SamplingParams(**token.scalars, logit_bias={7: 1.5, 3: -2.0}) == SAMPLING  # type: ignore[arg-type]
    assert len(make_token(TURN, "f" * 32, HISTORY * 100, 0)) < 700, "a long session's token is small"


def test_a_history_too_long_to_carry_has_no_token() -> None:
    assert make_token(TURN, "here", HISTORY * 60_000, 0) == b"", "it would unpack to too much"
    script = random.Random(1)
    wild = [Segment(Made.PREFILL, script.randrange(1, 513), 512) for _ in range(60_000)]
    assert make_token(TURN, "here", wild, 0) == b""


def test_a_mutilated_token_is_refused() -> None:
    whole = make_token(TURN, "here", HISTORY, 0)
    broken = [b"", whole[:-1], whole + b"x", b"\x02" + whole[1:], bytes(MAX_TOKEN_BYTES + 1)]
    broken += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for token in broken:
        with pytest.raises(InvalidRequestError) as refused:
            open_token(token)
        assert refused.value.field == "resume.resume_token"


def test_a_token_that_somebody_made_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.resume._SEAL_BYTES", 0)
    scalars = dict(token_of().scalars)
    good = ["f", "p", "l", scalars, [[1, 1]], 0]
    assert open_token(b"\x01" + zlib.compress(json.dumps(good).encode())).history == (Segment(Made.PREFILL, 1, 1),)
    senseless: tuple[object, ...] = (
        None, [], {}, "text", 7, good[:-1], [*good, 1],
        ["f", "p", "l", {**scalars, "temperature": None}, [], 0],
        ["f", "p", "l", {**scalars, "seed": 1.5}, [], 0],
        ["f", "p", "l", {**scalars, "stop_token_ids": [1]}, [], 0],
        ["f", "p", "l", {}, [], 0],
        ["f", "p", "l", scalars, [[1]], 0],
        ["f", "p", "l", scalars, [[1.0, 2]], 0],
        ["f", "p", "l", scalars, 3, 0],
        ["f", "p", "l", scalars, [], None],
        [1, "p", "l", scalars, [], 0],
    )  # fmt: skip
    for content in senseless:
        with pytest.raises(InvalidRequestError):
            open_token(b"\x01" + zlib.compress(json.dumps(content).encode()))
    for packed in (zlib.compress(b"[" * 100_000), zlib.compress(bytes(2**21)), b"no zlib", zlib.compress(b"\xff")):
        with pytest.raises(InvalidRequestError):
            open_token(b"\x01" + packed)


def test_a_token_serves_its_own_request_alone() -> None:
    exact = replace(TURN, resumption=Resumption((1,)))
    fast = replace(TURN, resumption=Resumption((1,), exact=False))
    check_same_turn(token_of(), exact, "here")
    check_same_turn(token_of(), fast, "elsewhere")
    with pytest.raises(OtherNumericsError, match="made with numerics here, and this server has elsewhere"):
        check_same_turn(token_of(), exact, "elsewhere")
    for other, field in (
        (replace(exact, prompt_ids=(5, 6, 8)), "messages"),
        (replace(exact, stop=("y",)), "resume.resume_token"),
        (replace(exact, sampling=replace(SAMPLING, logit_bias={7: 1.5})), "resume.resume_token"),
        (replace(exact, sampling=replace(SAMPLING, stop_token_ids=(4,))), "resume.resume_token"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            check_same_turn(token_of(), other, "here")
        assert refused.value.field == field
    other_order = replace(exact, sampling=replace(SAMPLING, logit_bias={3: -2.0, 7: 1.5}))
    check_same_turn(token_of(), other_order, "here")


def resumed(core: Core, request: TurnRequest, events: list[TurnEvent], mode: ResumeMode) -> TurnRequest:
    """The request that goes on after `events`."""
    first = events[0]
    assert isinstance(first, Started)
    token = open_token(first.resume_token)
    resumption = Resumption(tuple(ids(events)), mode is ResumeMode.EXACT, token.history, token.read)
    again = replace(request, request_id=f"{request.request_id}-again", resumption=resumption)
    check_same_turn(token, again, core.engine.info.fingerprint)
    return again


def joined(first: list[TurnEvent], second: list[TurnEvent]) -> list[TurnEvent]:
    """As a reader sees it: one answer."""
    return [*(event for event in first if not isinstance(event, Finished)), *second[1:]]


ANSWER = "Grüße, 안녕 🎻! one two thr"


async def test_promise_08_the_text_goes_on_after_what_was_shown() -> None:
    """Broken after every id: inside characters of several bytes and inside what may become a stop text."""
    stop = ("two three", "!x")
    async with running(FakeEngine(answer=saying(ANSWER))) as core:
        whole = await core.play(core.request(stop=stop))
        assert text(whole) == ANSWER
        for at in range(1, len(ids(whole)) + 1):
            request = core.request(stop=stop)
            first = await core.until_tokens(request, at)
            second = await core.play(resumed(core, request, first, ResumeMode.EXACT))
            assert isinstance(second[0], Started)
            assert second[0].resumed is ResumeMode.EXACT
            both = joined(first, second)
            assert text(both) == text(whole)
            assert ids(both) == ids(whole)
            assert finished(both).completion_tokens == finished(whole).completion_tokens
        assert {fact.resumed for fact in core.facts_of(TurnStarted)} == {None, ResumeMode.EXACT}


async def test_an_answer_that_its_reader_had_whole_ends_at_once() -> None:
    async with running(FakeEngine(answer=saying("one two three"))) as core:
        request = core.request(stop=("two",))
        whole = await core.play(request)
        steps = core.engine.decode_steps
        again = await core.play(resumed(core, request, whole, ResumeMode.EXACT))
        assert [type(event) for event in again] == [Started, Finished]
        assert finished(again).reason is FinishReason.STOP
        assert finished(again).stop_text == "two"
        await core.idle()

        request = core.request(sampling=SamplingParams(max_tokens=4))
        whole = await core.play(request)
        again = await core.play(resumed(core, request, whole, ResumeMode.EXACT))
        assert finished(again).reason is FinishReason.LENGTH
        assert finished(again).completion_tokens == 4

        request = core.request()
        whole = await core.play(request)
        steps = core.engine.decode_steps
        again = await core.play(resumed(core, request, whole, ResumeMode.EXACT))
        assert [type(event) for event in again] == [Started, Finished]
        assert finished(again).stop_token_id == 2
        assert finished(again).completion_tokens == core.engine.decode_steps - steps == len("one two three") + 1
        assert finished(again).graph.replays == finished(again).completion_tokens


async def test_max_tokens_counts_from_where_the_answer_began() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        request = core.request(sampling=SamplingParams(max_tokens=12))
        first = await core.until_tokens(request, 5)
        second = await core.play(resumed(core, request, first, ResumeMode.EXACT))
        assert len(ids(joined(first, second))) == 12
        assert finished(second).completion_tokens == 12


async def test_what_may_be_resumed_carries_its_token_at_the_end_too() -> None:
    engine = FakeEngine(answer=endless)
    async with running(engine) as core:
        engine.hold()
        engine.allow(3)
        events: list[TurnEvent] = []
        async for event in core.conversations.turn(request := core.request()):
            events.append(event)
            if len(ids(events)) == 3:
                core.conversations.interrupt(request.request_id)
                engine.allow(1)
        end, begun = finished(events), events[0]
        assert isinstance(begun, Started)
        assert end.reason is FinishReason.CANCELLED
        assert end.resume_token == begun.resume_token != b""
        engine.release()
        whole = await core.play(core.request(sampling=SamplingParams(max_tokens=2)))
        assert finished(whole).resume_token == b""


async def test_an_answer_that_is_not_repeated_is_the_callers_to_know() -> None:
    async with running(FakeEngine(answer=saying("one two three"))) as core:
        wrong = Resumption(tuple(ids_of("one too")))
        with pytest.raises(ReplayError):
            await core.play(replace(core.request(), resumption=wrong))
        assert isinstance((await core.play(core.request()))[1], Delta)
