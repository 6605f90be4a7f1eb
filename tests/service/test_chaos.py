"""Many turns at once over a fake engine, by seed: cancels, failures, deadlines, slow readers, sessions."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import aclosing

import pytest

from engine.errors import StepError
from engine.params import SamplingParams
from service.errors import DeadlineExceededError, RefusedError, ServiceError
from service.events import Delta, Finished, FinishReason, TurnAdmitted, TurnEnd, TurnEvent, TurnRefused
from service.scheduler import Limits
from tests.fakes import FakeEngine, echo, endless, text_of
from tests.service.core import Core, finished, ids, running, text

SEEDS = range(int(os.environ.get("SOLOIST_CHAOS_SEEDS", "12")))  # the full form sets 500


async def one_reader(core: Core, chance: random.Random, number: int) -> tuple[list[TurnEvent], BaseException | None]:
    """Reads one turn as some client might; gives what it saw."""
    request = core.request(
        f"question {number % 5} of {number}",
        session_id=chance.choice(["", "", "a", "b", "c"]),
        caller=chance.choice(["x", "y"]),
        stop=chance.choice([(), (), ("question",)]),
        in_s=chance.choice([None, None, 0.002, 0.02, 5.0]),
        priority=chance.randint(-1, 1),
        sampling=SamplingParams(max_tokens=chance.choice([None, 1, 8, 40])),
    )
    leaves_after = chance.choice([None, None, 0, 1, 5])
    reads_slowly = chance.random() < 0.2
    interrupts = chance.random() < 0.1
    seen: list[TurnEvent] = []
    try:
        async with aclosing(core.conversations.turn(request)) as turn:
            async for event in turn:
                seen.append(event)
                if leaves_after is not None and len(seen) > leaves_after:
                    break
                if interrupts:
                    core.conversations.interrupt(request.request_id)
                if reads_slowly:
                    await asyncio.to_thread(lambda: None)
    except (ServiceError, StepError) as error:
        return check(request.prompt_ids, request.stop, seen, error), error
    return check(request.prompt_ids, request.stop, seen, None), None


def check(
    prompt: tuple[int, ...], stop: tuple[str, ...], seen: list[TurnEvent], error: BaseException | None
) -> list[TurnEvent]:
    """What was delivered is a prefix of the right answer, and there was at most one end."""
    right = echo(prompt)
    assert ids(seen) == right[: len(ids(seen))]
    right_text = text_of(right)
    cut_short = any(isinstance(event, Finished) and event.reason is FinishReason.LENGTH for event in seen)
    for stop_text in stop:
        assert stop_text not in text(seen)
        right_text = right_text if cut_short else right_text.split(stop_text)[0]
    assert right_text.startswith(text(seen))
    ends = sum(isinstance(event, Finished) for event in seen)
    assert ends + (error is not None) <= 1
    if ends:
        end = finished(seen)
        assert end.graph.replays == end.completion_tokens
    return seen


@pytest.mark.parametrize("seed", SEEDS)
async def test_promise_9_chaos_by_seed(seed: int) -> None:
    chance = random.Random(seed)
    limits = Limits(
        queue=chance.choice([4, 16, 64]),
        active_turns=chance.choice([1, 2, 3]),
        slice_tokens=chance.choice([1, 4]),
        reader_window=chance.choice([4, 16, 256]),
        reader_patience_s=0.05,
    )
    engine = FakeEngine(prefill_chunk=8)
    async with running(engine, limits) as core:
        for _ in range(6):
            engine.faults.append(None)
            if chance.random() < 0.5:
                engine.fail(chance.randint(-1, 10), chance.choice([StepError("x"), RuntimeError("y")]))
        results = []
        for burst in range(4):
            readers = [one_reader(core, chance, burst * 20 + n) for n in range(chance.randint(1, 20))]
            results += await asyncio.wait_for(asyncio.gather(*readers), 30)
        await core.idle()
        admitted = [fact.request_id for fact in core.facts if isinstance(fact, TurnAdmitted)]
        refused = core.facts_of(TurnRefused)
        ended = core.ends()
        assert Counter(end.request_id for end in ended) == Counter(admitted)
        assert len(admitted) + len(refused) == len(results)
        errors = [error for _, error in results]
        assert len(refused) == sum(isinstance(error, RefusedError) or "had passed" in str(error) for error in errors)
        made = sum(end.completion_tokens + end.discarded_tokens for end in ended)
        assert made == sum(end.replays for end in ended) == engine.decode_steps
        assert not core.fatal
        load = core.worker.load()
        assert (load.active_turns, load.queued_turns) == (0, 0)
        assert engine.contexts_open <= engine.info.slots
        assert core.worker._stage._performances == {}
        assert core.worker._streams == {}
        engine.faults.clear()
        # What is still open are idle sessions; turns without one find room for all slots.
        last = await asyncio.gather(*(core.play(core.request(f"after {n}")) for n in range(4)))
        assert all(text(events).endswith(f"after {n}") for n, events in enumerate(last))


async def test_promise_1_cancelled_streams_and_short_deadlines_leave_nothing_behind() -> None:
    """200 streams cancelled at a random token and 200 with a short deadline."""
    streams = 200
    chance = random.Random(1)
    engine = FakeEngine(answer=endless)
    async with running(engine) as core:
        for _ in range(streams):
            engine.answer = endless
            at = chance.randint(1, 30)
            before = engine.decode_steps
            engine.hold()
            engine.allow(at)
            await core.until_tokens(core.request(), at)
            engine.release()
            left_s = time.monotonic()
            engine.answer = lambda _: [70]
            events = await core.play(core.request())
            assert time.monotonic() - left_s < 0.25
            assert finished(events).completion_tokens == 2
            assert engine.decode_steps <= before + at + 1 + 2
            engine._may_step = type(engine._may_step)(0)
        for _ in range(streams):
            engine.answer = endless
            try:
                events = await core.play(core.request(in_s=chance.uniform(0.001, 0.01)))
                assert finished(events).reason is FinishReason.DEADLINE
            except DeadlineExceededError:  # it came before the turn had left the queue
                pass
        await core.idle()
        ends = Counter(end.end for end in core.ends())
        refused = len(core.facts_of(TurnRefused))
        assert ends[TurnEnd.CANCELLED] == ends[TurnEnd.STOP] == streams
        assert ends[TurnEnd.DEADLINE] + ends[TurnEnd.EXPIRED] + refused == streams
        assert core.worker.load().active_turns == 0
        assert engine.contexts_open == 0


TURNS = 250  # of each caller


@pytest.mark.parametrize("active_turns", [1, 3])
async def test_eng_09_secrets_stay_in_their_session(active_turns: int) -> None:
    """Two callers with the same session id and different secrets, in interleaved turns: words equal the solo run's."""
    secrets = {"alice": "tulip", "bob": "raven"}
    solo: dict[str, list[str]] = {}
    for caller, secret in secrets.items():
        async with running() as core:
            solo[caller] = [
                text(await core.play(core.request(f"{secret} {n}", session_id="chat", caller=caller)))
                for n in range(TURNS)
            ]
    async with running(FakeEngine(prefill_chunk=4), Limits(active_turns=active_turns, slice_tokens=2)) as core:

        async def converse(caller: str) -> list[str]:
            return [
                text(await core.play(core.request(f"{secrets[caller]} {n}", session_id="chat", caller=caller)))
                for n in range(TURNS)
            ]

        alice, bob = await asyncio.gather(converse("alice"), converse("bob"))
    assert alice == solo["alice"]
    assert bob == solo["bob"]
    assert not any("raven" in line for line in alice)
    assert not any("tulip" in line for line in bob)


async def test_promise_7_readers_that_never_read_cost_others_nothing() -> None:
    limits = Limits(queue=200, reader_window=32, reader_patience_s=0.02)
    engine = FakeEngine(answer=endless)
    async with running(engine, limits) as core:
        streams = [core.worker.submit(core.request(sampling=SamplingParams(max_tokens=512))) for _ in range(100)]
        events = await core.play(core.request(priority=1, sampling=SamplingParams(max_tokens=100)))
        assert len(ids(events)) == 100
        await core.until(lambda: all(stream.over is not None for stream in streams), 15)
        assert all(stream.made <= limits.reader_window for stream in streams)
        for stream in streams:
            core.worker.release(stream, TurnEnd.SLOW_READER)
        await core.idle()
        assert engine.contexts_open == 0
        assert sum(isinstance(event, Delta) for event in events) >= 1
