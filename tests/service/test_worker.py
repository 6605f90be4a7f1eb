"""service.worker: one thread, one end for each turn, whatever happens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from engine.errors import FatalDeviceError
from engine.events import EngineEvent, Listener, Progress
from engine.params import SamplingParams
from service.conversation import Conversations
from service.errors import (
    DrainingError,
    EngineLostError,
    NotReadyError,
    QueueFullError,
)
from service.events import (
    FinishReason,
    Refusal,
    ServiceEvent,
    TurnEnd,
    TurnRefused,
)
from service.scheduler import Limits
from service.worker import Worker, WorkerState
from tests.contention import in_time
from tests.fakes import FakeEngine, endless
from tests.service.core import LONG, Core, finished, running, started


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


async def test_stop_gives_up_a_load_at_its_next_progress() -> None:
    loading, going_on = threading.Event(), threading.Event()

    def factory(listener: Listener) -> FakeEngine:
        loading.set()
        assert going_on.wait(5)
        listener(Progress("load", 1, 2, "bytes"))
        raise AssertionError("the load went on")

    worker = Worker(factory)
    worker.start()
    assert await asyncio.to_thread(loading.wait, 5)
    stopped = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)  # it has told the thread
    going_on.set()
    assert await stopped
    assert (worker.state, worker.failure) == (WorkerState.STOPPED, None)
    with pytest.raises(NotReadyError, match="given up"):
        await worker.ready()


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
        assert in_time(time.monotonic() - before_s, 1.0)
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


async def test_eng_07_an_observer_that_fails_harms_no_turn() -> None:
    def broken(_: object) -> None:
        raise RuntimeError("observer")

    worker = Worker(FakeEngine().opener(), listener=broken, engine_listener=broken)
    worker.start()
    await worker.ready()
    core = Core(FakeEngine(), worker, Conversations(worker), [])
    assert finished(await core.play(core.request())).reason is FinishReason.STOP
    assert await worker.stop()


async def test_the_queue_is_bounded_and_refuses_at_once() -> None:
    async with running(FakeEngine(answer=endless), Limits(queue=2)) as core:
        core.engine.hold()
        tasks = [await started(core, core.request(sampling=LONG))]
        tasks += [asyncio.create_task(core.play(core.request(sampling=SamplingParams(max_tokens=3)))) for _ in range(2)]
        await core.until(lambda: core.worker.load().queued_turns == 2)
        before_s = time.monotonic()
        with pytest.raises(QueueFullError) as refused:
            await core.play(core.request())
        assert in_time(time.monotonic() - before_s, 0.1)
        assert refused.value.retry_after_s > 0
        tasks[0].cancel()
        core.engine.release()
        for task in tasks[1:]:
            assert finished(await task).reason is FinishReason.LENGTH
        assert core.facts_of(TurnRefused)[0].reason is Refusal.QUEUE_FULL


async def test_draining_an_idle_worker_is_done_at_once() -> None:
    async with running() as core:
        core.worker.drain(grace_s=0.0)
        await asyncio.wait_for(core.worker.drained(), 30)


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
