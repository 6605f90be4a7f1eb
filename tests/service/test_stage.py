"""service.stage: the central loop takes one turn's step at a time, and one turn's fault is no other's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from engine.errors import ContextLengthError, OutOfDeviceMemoryError, StepError
from engine.events import EagerReason
from engine.params import SamplingParams
from service.errors import (
    DeadlineExceededError,
    DeadlineUnmeetableError,
    DrainingError,
    QueueFullError,
    SessionBusyError,
    SlowReaderError,
    TurnFailedError,
)
from service.events import (
    Finished,
    FinishReason,
    StallCause,
    Started,
    TokenMade,
    TurnEnd,
    TurnEvent,
)
from service.mailbox import Happening, Made, Over
from service.scheduler import Limits
from service.worker import WorkerState
from tests.contention import in_time
from tests.fakes import FakeEngine, FakeTokenizer, echo, endless, ids_of, text_of
from tests.service.core import LONG, HandClock, finished, ids, running, started, text


async def read_into(events: list[TurnEvent], turn: AsyncIterator[TurnEvent]) -> None:
    """What came before an error counts too."""
    async for event in turn:
        events.append(event)  # noqa: PERF401 a comprehension would lose them


async def test_eng_01_a_bad_request_leaves_the_loop_alive() -> None:
    """The caller's fault found by the engine ends that turn alone; the next one, in the same session too, is right."""
    async with running() as core:
        good = core.request("good", session_id="s")
        right = text(await core.play(good))
        for _ in range(5):
            with pytest.raises(ContextLengthError):
                await core.play(core.request(prompt_ids=(3,) * 5000, session_id="s"))
            with pytest.raises(ContextLengthError):
                await core.play(core.request(prompt_ids=(3,) * 5000))
            assert text(await core.play(core.request("good", session_id="s"))) == right
        await core.idle()
        assert Counter(end.end for end in core.ends())[TurnEnd.INVALID] == 10
        assert core.engine.contexts_open == 1  # the session's


@pytest.mark.parametrize(
    "error",
    [StepError("no"), OutOfDeviceMemoryError("full"), RuntimeError("surprise"), ValueError("odd"), MemoryError()],
)
async def test_eng_07_a_failing_step_ends_its_turn_and_no_other(error: Exception) -> None:
    async with running(limits=Limits(active_turns=2)) as core:
        right = text(await core.play(core.request("next")))
        core.engine.fail(5, error)
        events: list[TurnEvent] = []
        before_s = time.monotonic()
        with pytest.raises(TurnFailedError) as failed:
            await read_into(events, core.conversations.turn(core.request("doomed", session_id="s")))
        assert in_time(time.monotonic() - before_s, 1.0)
        assert failed.value.__cause__ is error
        assert len(ids(events)) == 5
        assert not any(isinstance(event, Finished) for event in events)
        assert text(await core.play(core.request("next"))) == right
        await core.idle()
        assert core.engine.contexts_open == 0  # the session's context is not trusted any more
        assert core.ends()[1].end is TurnEnd.FAILED


async def test_eng_07_a_turn_that_fails_before_its_first_step() -> None:
    async with running() as core:
        core.engine.fail(-1, RuntimeError("surprise"))
        with pytest.raises(TurnFailedError):
            await core.play(core.request())
        assert finished(await core.play(core.request())).reason is FinishReason.STOP


async def test_eng_08_cancelling_stops_work_within_one_step() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.hold()
        core.engine.allow(5)
        request = core.request(sampling=LONG)
        events = await core.until_tokens(request, 5)
        assert len(ids(events)) == 5
        core.engine.answer = echo
        waiting = asyncio.create_task(core.play(core.request("next")))
        before_s = time.monotonic()
        core.engine.release()
        assert finished(await waiting).reason is FinishReason.STOP
        assert in_time(time.monotonic() - before_s, 0.25)
        await core.idle()
        end = next(end for end in core.ends() if end.request_id == request.request_id)
        assert end.end is TurnEnd.CANCELLED
        assert end.completion_tokens == 5
        assert end.discarded_tokens <= 1
        assert end.cancel_to_idle_s is not None
        assert in_time(end.cancel_to_idle_s, 0.25)
        assert core.engine.contexts_open == 0


async def test_eng_08_a_cancelled_task_cancels_its_turn() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        task = await started(core, core.request(sampling=LONG))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await core.idle()
        assert [end.end for end in core.ends()] == [TurnEnd.CANCELLED]


async def test_a_deadline_in_the_queue_and_in_decode() -> None:
    clock = HandClock()
    async with running(FakeEngine(answer=endless), clock=clock) as core:
        core.engine.hold()
        core.engine.allow(3)
        playing = await started(core, core.request(sampling=LONG, in_s=3.0))
        waiting = asyncio.create_task(core.play(core.request(in_s=1.0)))
        await core.until(lambda: core.worker.load().queued_turns == 1)
        assert await asyncio.to_thread(core.engine.wait_for_steps, 3)
        clock.now_s += 3.5
        core.engine.release()
        with pytest.raises(DeadlineExceededError):
            await waiting
        end = finished(await playing)
        assert end.reason is FinishReason.DEADLINE
        assert end.completion_tokens <= 4
        with pytest.raises(DeadlineExceededError):
            await core.play(core.request(in_s=-1.0))


async def test_a_deadline_that_the_queue_cannot_meet_is_refused() -> None:
    async with running() as core:
        await core.play(core.request())
        core.worker._admission.learn_turn(10_000_000)  # from now on every turn is expected to take minutes
        core.engine.hold()
        playing = await started(core, core.request())
        with pytest.raises(DeadlineUnmeetableError) as refused:
            await core.play(core.request(in_s=5.0))
        assert refused.value.retry_after_s > 1.0
        core.engine.release()
        await playing


async def test_a_resting_worker_keeps_deadlines_and_its_heart_beats() -> None:
    async with running(FakeEngine(answer=endless), Limits(reader_window=4)) as core:
        stream = core.worker.submit(core.request(sampling=LONG, in_s=0.2))  # nobody reads: it is paused
        await core.until(lambda: stream.over is not None)
        assert stream.over is not None
        assert stream.over.end is TurnEnd.DEADLINE
        core.worker.release(stream, TurnEnd.DEADLINE)
        assert in_time(core.worker.heartbeat_age_s, 1.5)


async def test_rpc_05_a_slow_reader_is_paused_and_others_go_on() -> None:
    limits = Limits(active_turns=1, reader_window=8, reader_patience_s=0.3)
    async with running(FakeEngine(answer=endless), limits) as core:
        slow = core.worker.submit(core.request(sampling=LONG))
        await core.until(lambda: slow.made >= 6)
        for _ in range(3):  # with one place for all, it must have been given away
            other = finished(await core.play(core.request(sampling=SamplingParams(max_tokens=50))))
            assert other.completion_tokens == 50
        assert slow.made <= limits.reader_window
        await core.until(lambda: slow.over is not None)
        assert slow.over is not None
        assert isinstance(slow.over.error, SlowReaderError)
        core.worker.release(slow, TurnEnd.SLOW_READER)
        await core.idle()
        assert core.engine.contexts_open == 0


async def test_rpc_05_a_reader_that_catches_up_gets_every_token() -> None:
    limits = Limits(reader_window=8)
    async with running(FakeEngine(answer=endless), limits) as core:
        request = core.request(sampling=SamplingParams(max_tokens=100))
        stream = core.worker.submit(request)
        tokens = 0
        taken: list[Happening] = []
        while not any(isinstance(happening, Over) for happening in taken):
            taken = await stream.take()
            tokens += sum(isinstance(happening, Made) for happening in taken)
            await asyncio.to_thread(core.engine.wait_for_steps, min(tokens + limits.reader_window - 2, 100))
            assert len(taken) <= limits.reader_window + 1
        core.worker.release(stream, TurnEnd.LENGTH)
        assert tokens == stream.made == 100


async def test_two_turns_of_a_session_follow_each_other_and_a_third_is_refused() -> None:
    async with running(FakeEngine(answer=endless), Limits(active_turns=2)) as core:
        core.engine.hold()
        first = await started(core, core.request(sampling=SamplingParams(max_tokens=5), session_id="s"))
        second = asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=5), session_id="s")))
        await core.until(lambda: core.worker.load().queued_turns == 1)
        with pytest.raises(SessionBusyError):
            await core.play(core.request(session_id="s"))
        other = asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=5), session_id="t")))
        core.engine.release()
        assert finished(await first).cached_tokens == 0
        assert finished(await second).cached_tokens > 0
        await other


async def test_idle_sessions_make_room_oldest_first() -> None:
    async with running(FakeEngine(slots=2)) as core:
        for session_id in ("a", "b", "a", "c"):  # c takes b's slot
            await core.play(core.request("Hi", session_id=session_id))
        assert core.engine.contexts_open == 2
        again = finished(await core.play(core.request("Hi", session_id="a")))
        assert again.cached_tokens > 0
        assert finished(await core.play(core.request("Hi", session_id="b"))).cached_tokens == 0
        await core.play(core.request("Hi"))  # a turn without a session needs room too
        await core.idle()
        assert core.engine.contexts_open == 1
        assert core.worker.load().kv_tokens_used > 0


async def test_draining_ends_the_queue_now_and_the_playing_turn_in_its_time() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.hold()
        playing = await started(core, core.request(sampling=SamplingParams(max_tokens=20)))
        waiting = [asyncio.create_task(core.play(core.request())) for _ in range(4)]
        await core.until(lambda: core.worker.load().queued_turns == 4)
        core.worker.drain(grace_s=30.0)
        assert core.worker.state is WorkerState.DRAINING
        assert core.worker.load().draining
        with pytest.raises(DrainingError):
            await core.play(core.request())
        core.engine.release()
        for task in waiting:
            with pytest.raises(DrainingError):
                await task
        assert finished(await playing).reason is FinishReason.LENGTH
        await asyncio.wait_for(core.worker.drained(), 30)


async def test_what_cannot_end_in_the_grace_ends_as_draining() -> None:
    async with running(FakeEngine(answer=lambda _: ids_of("x" * 4000))) as core:
        core.engine.hold()
        core.engine.allow(3)
        playing = await started(core, core.request())
        core.worker.drain(grace_s=0.0)
        core.engine.release()
        end = finished(await playing)
        assert end.reason is FinishReason.DRAINING
        assert end.completion_tokens <= 5
        await asyncio.wait_for(core.worker.drained(), 30)


async def test_stalls_name_what_a_token_waited_for() -> None:
    async with running(FakeEngine(answer=endless), Limits(active_turns=2, slice_tokens=1)) as core:
        two = [core.play(core.request(str(n), sampling=SamplingParams(max_tokens=30))) for n in range(2)]
        await asyncio.gather(*two)
        causes = {cause.value for fact in core.facts for cause, _ in getattr(fact, "stalls", ())}
        assert {"other_session", "host"} <= causes
        assert not causes & {"client", "eager"}


@pytest.mark.parametrize(("eager", "stalls"), [(EagerReason.CONTEXT_BEYOND_GRAPHS, True), (EagerReason.NO_CUDA, False)])
async def test_an_eager_step_is_a_stall_where_a_replay_was_to_be_had(eager: EagerReason, stalls: bool) -> None:
    async with running(FakeEngine(eager=eager)) as core:
        await core.play(core.request())
        causes = [cause for fact in core.facts_of(TokenMade) for cause, _ in fact.stalls]
    assert (StallCause.EAGER in causes) is stalls


async def test_started_tells_the_seed_and_the_queue() -> None:
    async with running() as core:
        events = await core.play(core.request(sampling=SamplingParams(seed=7)))
        first = events[0]
        assert isinstance(first, Started)
        assert first.seed == 7
        assert first.queue_s >= 0
        assert text_of(ids(events)).startswith("[")
        assert FakeTokenizer().decode(ids(events)) == text(events)


async def test_a_turn_that_leaves_the_queue_makes_room_before_the_step_under_way_ends() -> None:
    async with running(FakeEngine(answer=endless), Limits(queue=1)) as core:
        core.engine.hold()
        playing = await started(core, core.request(sampling=SamplingParams(max_tokens=3)))
        leaving = core.worker.submit(core.request())
        with pytest.raises(QueueFullError):
            core.worker.submit(core.request())
        core.worker.release(leaving, TurnEnd.CANCELLED)  # the engine's thread cannot hear of it: it is held in a step
        waiting = asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=3))))
        core.engine.release()
        assert finished(await playing).reason is FinishReason.LENGTH
        assert finished(await waiting).reason is FinishReason.LENGTH


async def test_nobody_waits_for_anothers_step_to_hear_of_an_end() -> None:
    limits = Limits(active_turns=2, slice_tokens=1)
    async with running(FakeEngine(answer=endless), limits) as core:
        core.engine.hold()
        other = await started(core, core.request(sampling=LONG))
        short = asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=3))))
        await core.until(lambda: core.worker.load().queued_turns == 1)
        made: Counter[int] = Counter()
        while made[2] < 3:  # contexts are numbered in the order of their opening
            core.engine.allow(1)
            assert await asyncio.to_thread(core.engine.wait_for_steps, made.total() + 1)
            made = Counter(number for number, kind in core.engine.played if kind == "decode")
        assert finished(await asyncio.wait_for(short, 30)).reason is FinishReason.LENGTH  # while the other one is held
        other.cancel()
        core.engine.release()
