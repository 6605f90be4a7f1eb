"""The life of a whole server: loading, serving, leaving in order, and its ends when something breaks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.config import EngineConfig
from engine.errors import CheckpointError, DeviceError, FatalDeviceError
from engine.events import Listener, ignore
from service.app import EXIT_CANNOT_START, EXIT_DRAINED, EXIT_ENGINE_LOST, App, engine_factory
from service.client import ChatClient, ChatError, Delta, Finished, Retries, UnavailableError
from service.ops.drain import DrainTimes
from service.ops.health import Readiness
from tests.checkpoints import write_tiny_folder
from tests.contention import in_time
from tests.fakes import FakeEngine, endless, saying
from tests.service.running import in_flight, quick, running, until

ONCE = Retries(attempts=1)
ROOT = Path(__file__).parents[2]


async def health_of(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    return int(response.status)


async def end_of(asking: Any) -> Any:
    """The answer, or the error."""
    try:
        return await asking
    except ChatError as error:
        return error


class SlowLoad:
    """Opens a fake engine when it is told to."""

    def __init__(self, engine: FakeEngine | None = None, error: Exception | None = None) -> None:
        self.may_open = threading.Event()
        self._engine = engine or FakeEngine()
        self._error = error

    def __call__(self, listener: Listener) -> Any:
        assert self.may_open.wait(20)
        if self._error is not None:
            raise self._error
        return self._engine.opener()(listener)


async def test_while_loading_health_answers_not_serving_and_chat_is_unavailable() -> None:
    load = SlowLoad()
    app = App(quick(), load)
    await app.start()
    async with ChatClient(app.address, retries=ONCE) as chat:
        assert await health_of(app.address) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(UnavailableError) as caught:
            await chat.ask("x")
        assert caught.value.reason == "NOT_READY"
        load.may_open.set()
        await app.ready()
        assert await health_of(app.address) == health_pb2.HealthCheckResponse.SERVING
        assert (await chat.ask("x")).finished.reason == "stop"
    await app.close()


async def test_a_model_that_cannot_be_opened_ends_the_process() -> None:
    load = SlowLoad(error=CheckpointError("model.gguf: is no GGUF file"))
    app = App(quick(), load)
    await app.start()
    run = asyncio.create_task(app.run())
    load.may_open.set()
    with pytest.raises(CheckpointError):
        await app.ready()

    assert await asyncio.wait_for(run, 30) == EXIT_CANNOT_START


async def test_a_device_without_room_for_the_turns_at_once_ends_the_process_with_what_would_be_right() -> None:
    app = App(quick(max_active_turns=3), FakeEngine(slots=2).opener())
    await app.start()
    run = asyncio.create_task(app.run())
    with pytest.raises(DeviceError, match=r"room for 2 sessions, fewer than the 3 turns.*--max-active-turns"):
        await app.ready()

    assert await asyncio.wait_for(run, 30) == EXIT_CANNOT_START


async def test_the_log_says_how_much_room_there_is_and_that_it_is_less_than_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("soloist"), "propagate", True)
    with caplog.at_level(logging.INFO, "soloist"):
        async with running(FakeEngine(slots=2, context=1000)):
            pass
    fields = {record.getMessage(): getattr(record, "fields", {}) for record in caplog.records}

    assert fields["the device has room for fewer KV slots than asked for"] == {"asked_for": 4, "fit": 2}
    sizes = {name: fields["ready"][name] for name in ("kv_slots", "kv_tokens", "kv_mib", "graph_pool_mib")}
    assert sizes == {"kv_slots": 2, "kv_tokens": 2000, "kv_mib": 1, "graph_pool_mib": 0}


def test_a_model_without_a_chat_template_is_refused_before_anybody_asks(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    (folder / "chat_template.jinja").unlink()

    with pytest.raises(CheckpointError, match="no chat template"):
        engine_factory(EngineConfig(model=str(folder), device="cpu"))(ignore)


async def test_leaving_while_loading_ends_well() -> None:
    load = SlowLoad()
    app = App(quick(), load)
    await app.start()
    run = asyncio.create_task(app.run())
    app.signal()
    load.may_open.set()

    assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def test_promise_04_the_running_turn_completes_and_queued_ones_are_told() -> None:
    for _ in range(20):
        engine = FakeEngine(answer=saying("the whole answer"))
        engine.hold()
        app = App(quick(), engine.opener())
        await app.start()
        await app.ready()
        run = asyncio.create_task(app.run())
        async with ChatClient(app.address, retries=ONCE) as chat:
            first = asyncio.create_task(end_of(chat.ask("first")))
            await until(engine.held.is_set)  # the first one plays
            queued = [asyncio.create_task(end_of(chat.ask("queued"))) for _ in range(4)]
            await until(lambda app=app: in_flight(app) == 5)  # type: ignore[misc]
            app.signal()
            await until(lambda app=app: app.worker.load().draining)  # type: ignore[misc]
            engine.allow(1)  # the engine's thread hears of it between two steps
            ends = await asyncio.wait_for(asyncio.gather(*queued), 30)
            assert all(isinstance(end, UnavailableError) and end.reason == "DRAINING" for end in ends)
            assert app.health.state is Readiness.DRAINING
            refused = await end_of(chat.ask("late"))
            assert isinstance(refused, UnavailableError)
            engine.release()
            answer = await asyncio.wait_for(first, 30)
            assert answer.text == "the whole answer"
        assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def test_while_balancers_hear_of_it_new_turns_are_still_answered() -> None:
    engine = FakeEngine(answer=saying("still here"))
    app = App(quick(propagation_s=1.0), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        app.signal()
        await until(lambda: app.health.state is Readiness.DRAINING)
        assert await health_of(app.address) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await chat.ask("x")).text == "still here"
    assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def stepping(engine: FakeEngine, asking: asyncio.Task[Any]) -> Any:
    """The end of a turn of a held engine, a step a look: left alone, it might be over before a signal is heard."""

    def step_or_end() -> bool:
        engine.allow(1)
        return asking.done()

    await until(step_or_end)
    return asking.result()


async def test_a_turn_that_outlives_the_grace_ends_with_draining() -> None:
    engine = FakeEngine(answer=endless, context=1 << 20)
    engine.hold()
    app = App(quick(grace_s=0.3), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        asking = asyncio.create_task(chat.ask("x"))
        await until(engine.held.is_set)  # it plays: one that waits would be refused
        app.signal()
        answer = await stepping(engine, asking)
    engine.release()
    assert answer.finished.reason == "draining"
    assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def test_a_second_signal_does_not_wait_for_the_grace() -> None:
    engine = FakeEngine(answer=endless, context=1 << 20)
    engine.hold()
    app = App(quick(grace_s=600.0), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        asking = asyncio.create_task(chat.ask("x"))
        await until(engine.held.is_set)
        app.signal()
        await until(lambda: app.worker.load().draining)
        app.signal()

        answer = await stepping(engine, asking)
    assert isinstance(answer.finished, Finished)
    assert answer.finished.reason == "draining"
    engine.release()
    assert await asyncio.wait_for(run, 30) == EXIT_DRAINED  # of 600


async def test_promise_04_no_drain_takes_longer_than_is_told_whatever_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    short = partial(DrainTimes, ending_s=0.2, engine_s=0.4, handlers_s=0.3, watchers_s=0.1, observers_s=0.3)
    monkeypatch.setattr("service.app.DrainTimes", short)
    engine = FakeEngine(answer=saying("never said"))
    engine.hold()
    app = App(quick(propagation_s=0.2, grace_s=0.5), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        asking = asyncio.create_task(end_of(chat.ask("x")))
        await until(engine.held.is_set)
        signalled_s = time.monotonic()
        app.signal()
        assert await asyncio.wait_for(run, 30) == EXIT_ENGINE_LOST
        took_s = time.monotonic() - signalled_s
        await asyncio.wait_for(asking, 30)
    engine.release()

    phases_s = 0.2 + 0.5 + 0.2
    assert phases_s + 0.4 <= took_s
    assert in_time(took_s, app.times.total_s + 1.0)


async def test_a_loaded_model_that_cannot_be_served_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such figure")

    app = App(quick(), FakeEngine().opener())
    monkeypatch.setattr(app.metrics, "serve_model", fail)
    await app.start()
    run = asyncio.create_task(app.run())
    with pytest.raises(ValueError, match="no such figure"):
        await app.ready()

    assert app.health.state is Readiness.ENGINE_LOST
    assert await asyncio.wait_for(run, 30) == EXIT_CANNOT_START


class Killed(BaseException):
    """Ends a thread whatever it catches."""


async def test_eng_03_a_dead_engine_thread_turns_health_off_and_ends_the_process() -> None:
    engine = FakeEngine(answer=saying("never said"))
    app = App(quick(), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        engine.fail(3, Killed())
        killed_s = time.monotonic()
        error = await asyncio.wait_for(end_of(chat.ask("x")), 30)
        assert isinstance(error, ChatError)
        await until(lambda: app.health.state is Readiness.ENGINE_LOST)
        assert in_time(time.monotonic() - killed_s, 5.0)
    assert await asyncio.wait_for(run, 30) == EXIT_ENGINE_LOST


async def test_eng_03_an_engine_that_hangs_is_given_up() -> None:
    engine = FakeEngine(answer=saying("never said"))
    engine.hold()
    app = App(quick(hang_s=1.5), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with ChatClient(app.address, retries=ONCE) as chat:
        asking = asyncio.create_task(end_of(chat.ask("x")))
        await until(lambda: app.health.state is Readiness.ENGINE_LOST)
        error = await asyncio.wait_for(asking, 30)  # while the engine still hangs
        assert isinstance(error, UnavailableError)
        assert error.reason == "ENGINE_LOST"
        engine.release()
        assert await asyncio.wait_for(run, 30) == EXIT_ENGINE_LOST


async def test_eng_05_after_a_fatal_device_error_nothing_is_answered_again() -> None:
    engine = FakeEngine(answer=saying("never said"))
    app = App(quick(), engine.opener())
    await app.start()
    await app.ready()
    async with ChatClient(app.address, retries=ONCE) as chat:
        engine.fail(3, FatalDeviceError("device-side assert"))
        asked_s = time.monotonic()
        error = await asyncio.wait_for(end_of(chat.ask("x")), 30)
        assert in_time(time.monotonic() - asked_s, 1.0)
        assert isinstance(error, UnavailableError)
        assert "device-side assert" not in str(error)
        await until(lambda: app.health.state is Readiness.ENGINE_LOST)
        assert await health_of(app.address) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert isinstance(await end_of(chat.ask("again")), UnavailableError)
    assert await asyncio.wait_for(app.run(), 30) == EXIT_ENGINE_LOST


async def test_a_watcher_of_health_does_not_keep_a_server_from_leaving() -> None:
    app = App(quick(), FakeEngine().opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with grpc.aio.insecure_channel(app.address) as channel:
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        app.signal()
        assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def test_nothing_is_left_behind() -> None:
    async def live() -> None:
        async with running(metrics_listen="127.0.0.1:0") as app, ChatClient(app.address) as chat:
            await chat.ask("x")

    def ours() -> list[str]:
        # The loop's executor keeps its threads, and makes one more whenever two things are asked of it at once.
        return sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_"))

    await live()  # gRPC keeps a thread, once it has begun
    threads = len(ours())
    for _ in range(3):
        await live()
    await until(lambda: len(ours()) <= threads)


def test_importing_the_app_loads_no_torch() -> None:
    program = "import sys, service.app; print('torch' in sys.modules, 'transformers' in sys.modules)"

    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment()
    )

    assert shown.stdout.split() == ["False", "False"]


# As a process of its own.


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOLOIST_")}
    return {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", **more}


SERVE = """
import sys
import service.app
import service.process
from tests.fakes import FakeEngine, endless
from service.settings import load_settings
engine = FakeEngine(answer=endless, context=1 << 20)
service.app.engine_factory = lambda config: engine.opener()
sys.exit(service.process.run_server(load_settings({}, {**%r})))
"""


@contextmanager
def serving(**settings: str) -> Iterator[subprocess.Popen[str]]:
    given = {"SOLOIST_LISTEN": "127.0.0.1:0", "SOLOIST_METRICS_LISTEN": "off", "SOLOIST_PROPAGATION_S": "0", **settings}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE % given], stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def line_with(process: subprocess.Popen[str], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    import json

    assert process.stderr is not None
    for line in process.stderr:
        facts: dict[str, Any] = json.loads(line)
        if holds(facts):
            return facts
    raise AssertionError("the server ended without saying so")


def test_promise_04_sigterm_ends_a_process_with_0_within_the_grace() -> None:
    with serving(SOLOIST_GRACE_S="0.1") as process:
        address = line_with(process, lambda line: line["message"] == "ready")["grpc"]

        async def talk() -> Any:
            async with ChatClient(address, retries=ONCE) as chat:
                events: list[Any] = []
                async for event in chat.stream("x"):
                    if not any(isinstance(before, Delta) for before in events) and isinstance(event, Delta):
                        signalled_s.append(time.monotonic())
                        process.send_signal(signal.SIGTERM)
                    events.append(event)
                return events[-1]

        signalled_s: list[float] = []
        end = asyncio.run(talk())
        assert end.reason == "draining"
        assert process.wait(30) == EXIT_DRAINED
        assert in_time(time.monotonic() - signalled_s[0], 0.1 + 2.0 + 1.0)


def test_a_taken_port_is_one_line_and_a_code() -> None:
    with serving() as first:
        address = line_with(first, lambda line: line["message"] == "ready")["grpc"]
        with serving(SOLOIST_LISTEN=address) as second:
            line = line_with(second, lambda line: line["level"] == "critical")
            assert line["error"] == f"cannot listen on {address}: Address already in use"
            assert second.wait(30) == EXIT_CANNOT_START
