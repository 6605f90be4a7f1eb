"""service.worker and service.stage: one thread, one end for each turn, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from engine.errors import ContextLengthError, FatalDeviceError, OutOfDeviceMemoryError, StepError
from engine.events import EngineEvent, Listener, Progress
from engine.params import SamplingParams
from service.conversation import Conversations
from service.errors import (
    DeadlineExceededError,
    DeadlineUnmeetableError,
    DrainingError,
    EngineLostError,
    NotReadyError,
    QueueFullError,
    SessionBusyError,
    SlowReaderError,
    TurnFailedError,
)
from service.events import (
    Finished,
    FinishReason,
    Refusal,
    ServiceEvent,
    Started,
    TurnEnd,
    TurnEvent,
    TurnRefused,
    TurnRequest,
)
from service.mailbox import Happening, Made, Over
from service.scheduler import Limits
from service.worker import Worker, WorkerState
from tests.fakes import FakeEngine, FakeTokenizer, echo, endless, ids_of, text_of
from tests.service.core import Core, HandClock, finished, ids, running, text

LONG = SamplingParams(max_tokens=2_000)


async def started(core: Core, request: TurnRequest) -> asyncio.Task[list[TurnEvent]]:
    """A turn that plays on in its own task, once it has begun."""
    begun = asyncio.Event()

    async def play() -> list[TurnEvent]:
        events: list[TurnEvent] = []
        async with aclosing(core.conversations.turn(request)) as turn:
            async for event in turn:
                events.append(event)
                begun.set()
        return events

    task = asyncio.create_task(play())
    await asyncio.wait_for(begun.wait(), 5)
    return task


async def read_into(events: list[TurnEvent], turn: AsyncIterator[TurnEvent]) -> None:
    """What came before an error counts too."""
    async for event in turn:
        events.append(event)  # noqa: PERF401 a comprehension would lose them


async def test_one_thread_owns_the_engine() -> None:
    async with running() as core:
        await asyncio.gather(*(core.play(core.request(f"turn {n}")) for n in range(5)))
    assert len(core.engine.threads) == 1
    assert threading.get_ident() not in core.engine.threads
    assert core.engine.closed
    assert not core.worker.alive


async def test_progress_and_state_are_told() -> None:
    heard: list[EngineEvent] = []
    opening = threading.Event()

    def factory(listener: Listener) -> FakeEngine:
        listener(Progress("load", 1, 2, "bytes"))
        assert opening.wait(5)
        return FakeEngine()

    worker = Worker(factory, engine_listener=heard.append)
    states = [worker.state]
    worker.start()
    states.append(worker.state)
    with pytest.raises(NotReadyError):
        _ = worker.engine
    opening.set()
    await worker.ready()
    states.append(worker.state)
    assert worker.progress == heard[0] == Progress("load", 1, 2, "bytes")
    assert await worker.stop()
    states.append(worker.state)
    assert states == [WorkerState.NEW, WorkerState.LOADING, WorkerState.READY, WorkerState.STOPPED]


async def test_a_model_that_cannot_be_loaded_fails_the_start() -> None:
    fatal: list[BaseException] = []
    broken = OSError("no such file")

    def factory(_: Listener) -> FakeEngine:
        raise broken

    worker = Worker(factory, on_fatal=fatal.append)
    worker.start()
    with pytest.raises(OSError, match="no such file"):
        await worker.ready()
    assert worker.state is WorkerState.FAILED
    assert fatal == [broken]


async def test_turns_are_refused_while_loading() -> None:
    async with running() as core:
        facts: list[ServiceEvent] = []
        opening = threading.Event()

        def factory(listener: Listener) -> FakeEngine:
            opening.wait(5)
            return FakeEngine()

        worker = Worker(factory, listener=facts.append)
        worker.start()
        with pytest.raises(NotReadyError):
            worker.submit(core.request())
        assert [fact.reason for fact in facts if isinstance(fact, TurnRefused)] == [Refusal.NOT_READY]
        opening.set()
        await worker.ready()
        await worker.stop()


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


async def kill_and_ask_again(error: BaseException) -> Core:
    """Kills the engine at token 5 with one turn playing and two waiting; every one must end within a second."""
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.hold()
        core.engine.fail(5, error)
        playing = await started(core, core.request(sampling=LONG))
        waiting = [asyncio.create_task(core.play(core.request())) for _ in range(2)]
        await core.until(lambda: core.worker.load().queued_turns == 2)
        before_s = time.monotonic()
        core.engine.release()
        for task in (playing, *waiting):
            with pytest.raises(EngineLostError):
                await task
        assert time.monotonic() - before_s < 1.0
        assert core.worker.state is WorkerState.FAILED
        assert core.fatal == [error]
        for _ in range(3):
            with pytest.raises(EngineLostError):
                await core.play(core.request())
        assert Counter(end.end for end in core.ends()) == {TurnEnd.ENGINE_LOST: 3}
        assert core.worker.load().active_turns == core.worker.load().queued_turns == 0
        return core


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_eng_03_the_death_of_the_thread_is_seen_by_everybody() -> None:
    class ThreadKilledError(BaseException):
        pass

    core = await kill_and_ask_again(ThreadKilledError())
    await core.until(lambda: not core.worker.alive)


async def test_eng_05_no_answer_after_a_sticky_device_error() -> None:
    core = await kill_and_ask_again(FatalDeviceError("CUDA error: device-side assert triggered"))
    assert not core.engine.closed  # a lost device is not touched again


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
        assert time.monotonic() - before_s < 1.0
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


async def test_eng_07_an_observer_that_fails_harms_no_turn() -> None:
    def broken(_: object) -> None:
        raise RuntimeError("observer")

    worker = Worker(FakeEngine().opener(), listener=broken, engine_listener=broken)
    worker.start()
    await worker.ready()
    core = Core(FakeEngine(), worker, Conversations(worker), [])
    assert finished(await core.play(core.request())).reason is FinishReason.STOP
    assert await worker.stop()


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
        assert time.monotonic() - before_s < 0.25
        await core.idle()
        end = next(end for end in core.ends() if end.request_id == request.request_id)
        assert end.end is TurnEnd.CANCELLED
        assert end.completion_tokens == 5
        assert end.discarded_tokens <= 1
        assert end.cancel_to_idle_s is not None
        assert end.cancel_to_idle_s < 0.25
        assert core.engine.contexts_open == 0


async def test_eng_08_a_cancelled_task_cancels_its_turn() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        task = await started(core, core.request(sampling=LONG))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await core.idle()
        assert [end.end for end in core.ends()] == [TurnEnd.CANCELLED]


async def test_the_queue_is_bounded_and_refuses_at_once() -> None:
    async with running(FakeEngine(answer=endless), Limits(queue=2)) as core:
        core.engine.hold()
        tasks = [await started(core, core.request(sampling=LONG))]
        tasks += [asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=3)))) for _ in range(2)]
        await core.until(lambda: core.worker.load().queued_turns == 2)
        before_s = time.monotonic()
        with pytest.raises(QueueFullError) as refused:
            await core.play(core.request())
        assert time.monotonic() - before_s < 0.1
        assert refused.value.retry_after_s > 0
        tasks[0].cancel()
        core.engine.release()
        for task in tasks[1:]:
            assert finished(await task).reason is FinishReason.LENGTH
        assert core.facts_of(TurnRefused)[0].reason is Refusal.QUEUE_FULL


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
        assert core.worker.heartbeat_age_s < 1.5


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
        await asyncio.wait_for(core.worker.drained(), 5)


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
        await asyncio.wait_for(core.worker.drained(), 5)


async def test_draining_an_idle_worker_is_done_at_once() -> None:
    async with running() as core:
        core.worker.drain(grace_s=0.0)
        await asyncio.wait_for(core.worker.drained(), 1)


async def test_stopping_ends_every_turn_once() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        playing = await started(core, core.request(sampling=LONG))
        waiting = [asyncio.create_task(core.play(core.request())) for _ in range(3)]
        await core.until(lambda: core.worker.load().queued_turns == 3)
        assert await core.worker.stop()
        assert finished(await playing).reason is FinishReason.DRAINING
        for task in waiting:
            with pytest.raises(DrainingError):
                await task
        assert len(core.ends()) == 4
        assert core.engine.contexts_open == 0


async def test_a_hung_engine_shows_in_the_heartbeat_and_cannot_be_stopped() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.hold()
        playing = await started(core, core.request(sampling=LONG))
        await core.until(lambda: core.worker.heartbeat_age_s > 0.2)
        assert not await core.worker.stop(timeout_s=0.1)
        core.engine.release()
        await playing


async def test_the_loop_is_woken_once_for_all_that_gathered() -> None:
    """Many tokens while the loop is busy are one callback, not a storm."""
    async with running(FakeEngine(answer=endless)) as core:
        loop = asyncio.get_running_loop()
        calls = 0
        plain = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return plain(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        stream = core.worker.submit(core.request(sampling=SamplingParams(max_tokens=100)))
        assert core.engine.wait_for_steps(100)  # blocks this loop on purpose
        loop.call_soon_threadsafe = plain  # type: ignore[method-assign]
        assert calls <= 1
        await core.until(lambda: stream.over is not None)
        core.worker.release(stream, TurnEnd.LENGTH)
        assert stream.made == 100


async def test_stalls_name_what_a_token_waited_for() -> None:
    async with running(FakeEngine(answer=endless), Limits(active_turns=2, slice_tokens=1)) as core:
        two = [core.play(core.request(str(n), sampling=SamplingParams(max_tokens=30))) for n in range(2)]
        await asyncio.gather(*two)
        causes = {cause.value for fact in core.facts for cause, _ in getattr(fact, "stalls", ())}
        assert "other_session" in causes


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
        assert finished(await asyncio.wait_for(short, 2)).reason is FinishReason.LENGTH  # while the other one is held
        other.cancel()
        core.engine.release()
