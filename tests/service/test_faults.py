"""Each fault of the engine has one end: clients hear of it within a second, health within five, the exit code says it.

The table of faults in ARCHITECTURE.md is what these tests hold.
"""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.errors import CheckpointError, FatalDeviceError, OutOfDeviceMemoryError, StepError
from engine.events import Listener, Progress
from service.app import EXIT_CANNOT_START, EXIT_DRAINED, EXIT_ENGINE_LOST, App
from service.client import ChatClient, ChatError, Retries, ServerError, UnavailableError
from service.parts import HANG_CUDA_S, HANG_S, hang_s
from tests.contention import in_time
from tests.fakes import FakeEngine, saying
from tests.service.running import in_flight, quick, until
from tests.service.test_app import environment

ONCE = Retries(attempts=1)
CLIENTS_KNOW_S, HEALTH_KNOWS_S = 1.0, 5.0
LOST = health_pb2.HealthCheckResponse.NOT_SERVING


class Killed(BaseException):
    """Ends a thread whatever it catches."""


@dataclass
class Server:
    """A running server, what it will exit with, and when its health was seen to go."""

    app: App
    engine: FakeEngine
    exit_code: asyncio.Task[int]
    health_gone: asyncio.Task[float]


@asynccontextmanager
async def serving(engine: FakeEngine, **changes: Any) -> AsyncIterator[Server]:
    app = App(quick(**changes), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    async with grpc.aio.insecure_channel(app.address) as channel:
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING

        async def gone() -> float:
            while (await watch.read()).status != LOST:
                pass
            return time.monotonic()

        server = Server(app, engine, run, asyncio.create_task(gone()))
        yield server
        server.health_gone.cancel()
    if not run.done():
        app.signal()
        engine.release()
        await asyncio.wait_for(run, 30)


async def end_of(asking: Any) -> Any:
    try:
        return await asking
    except ChatError as error:
        return error


@pytest.mark.parametrize("error", [StepError("no"), OutOfDeviceMemoryError("no"), RuntimeError("a bug"), MemoryError()])
async def test_eng_07_a_failed_step_ends_one_turn_and_no_other(error: Exception) -> None:
    async with serving(FakeEngine(answer=saying("a long answer"))) as server:
        server.engine.fail(5, error)
        async with ChatClient(server.app.address, retries=ONCE) as chat:
            asked_s = time.monotonic()
            told = await asyncio.wait_for(end_of(chat.ask("x")), 30)
            assert in_time(time.monotonic() - asked_s, CLIENTS_KNOW_S)
            assert isinstance(told, ServerError)
            assert told.reason == "INTERNAL"
            assert (await chat.ask("x")).text == "a long answer"
        assert not server.health_gone.done()
        server.app.signal()
        assert await asyncio.wait_for(server.exit_code, 30) == EXIT_DRAINED


def lose_device(server: Server) -> None:
    server.engine.fail(2, FatalDeviceError("CUDA error: device-side assert triggered"))


def kill_thread(server: Server) -> None:
    server.engine.fail(2, Killed())


def hang(server: Server) -> None:
    server.engine.hold()


@pytest.mark.parametrize(("fault", "after_s"), [(lose_device, 0.0), (kill_thread, 0.0), (hang, 1.0)])
async def test_eng_03_eng_05_a_lost_engine_ends_every_turn_health_and_the_process(
    fault: Callable[[Server], None], after_s: float
) -> None:
    """A hang shows once its limit is over, here a second, and a look every half second sees it."""
    async with serving(FakeEngine(answer=saying("never said")), hang_s=1.0) as server:
        fault(server)
        async with ChatClient(server.app.address, retries=ONCE) as chat:
            broken_s = time.monotonic()
            turns = [asyncio.create_task(end_of(chat.ask(str(n)))) for n in range(5)]  # one plays, four wait
            ends = await asyncio.wait_for(asyncio.gather(*turns), 30)
            assert in_time(time.monotonic() - broken_s, after_s + CLIENTS_KNOW_S)
            assert all(isinstance(end, UnavailableError) and end.reason == "ENGINE_LOST" for end in ends)
            assert in_time(await asyncio.wait_for(server.health_gone, 30) - broken_s, after_s + HEALTH_KNOWS_S)
            late = await end_of(chat.ask("late"))
            assert isinstance(late, UnavailableError)  # no answer after the fault, from whatever is left
        assert await asyncio.wait_for(server.exit_code, 30) == EXIT_ENGINE_LOST
        server.engine.release()


async def test_a_thread_that_dies_without_a_word_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(FakeEngine(answer=saying("never said"))) as server:
        server.engine.hold()
        async with ChatClient(server.app.address, retries=ONCE) as chat:
            asking = asyncio.create_task(end_of(chat.ask("x")))
            await until(lambda: in_flight(server.app) == 1)
            monkeypatch.setattr(type(server.app.worker), "alive", property(lambda _self: False))
            told = await asyncio.wait_for(asking, CLIENTS_KNOW_S)
            assert isinstance(told, UnavailableError)
        assert await asyncio.wait_for(server.exit_code, 30) == EXIT_ENGINE_LOST
        server.engine.release()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error", "/models/model.safetensors"),
        CheckpointError("model.safetensors: ends in the middle of a tensor"),
        OutOfDeviceMemoryError("no room for the weights"),
        FatalDeviceError("the device is lost"),
        Killed(),
    ],
)
async def test_a_fault_while_loading_ends_the_process_which_cannot_start(error: BaseException) -> None:
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    go_on = asyncio.Event()

    def half_a_load(listener: Listener) -> Any:
        listener(Progress("load", 50, 100, "bytes"))
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
        raise error

    app = App(quick(), half_a_load)
    await app.start()
    run = asyncio.create_task(app.run())
    await reached.wait()
    async with ChatClient(app.address, retries=ONCE) as chat:
        told = await end_of(chat.ask("x"))
        assert isinstance(told, UnavailableError)
        assert told.reason == "NOT_READY"
    go_on.set()
    assert await asyncio.wait_for(run, 30) == EXIT_CANNOT_START


def test_the_watchdog_is_quicker_on_cuda_and_the_operator_has_the_last_word() -> None:
    assert hang_s(quick(), "cpu") == HANG_S
    assert hang_s(quick(), "NVIDIA H200") == HANG_CUDA_S < HANG_S
    assert hang_s(quick(hang_s=7.0), "NVIDIA H200") == 7.0


PROCESS = """
import sys
import service.app
import service.process
from service.settings import load_settings
from engine.errors import FatalDeviceError
from tests.fakes import FakeEngine
from tests.service.test_faults import Killed

def load(listener):
    if {fault!r} == "disk":
        raise OSError(5, "Input/output error", "/models/model.gguf")
    engine = FakeEngine(listener=listener)
    if {fault!r} == "hang":
        engine.hold()
    else:
        engine.fail(1, {{"device": FatalDeviceError("lost"), "thread": Killed()}}[{fault!r}])
    return engine

service.app.engine_factory = lambda config: load
settings = {{"SOLOIST_LISTEN": "127.0.0.1:0", "SOLOIST_METRICS_LISTEN": "off", "SOLOIST_HANG_S": "1"}}
sys.exit(service.process.run_server(load_settings({{}}, settings)))
"""


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("disk", EXIT_CANNOT_START),
        ("device", EXIT_ENGINE_LOST),
        ("thread", EXIT_ENGINE_LOST),
        ("hang", EXIT_ENGINE_LOST),
    ],
)
def test_eng_05_the_process_says_by_its_exit_code_what_happened(tmp_path: Path, fault: str, code: int) -> None:
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS.format(fault=fault)], stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            facts = json.loads(line)
            if facts["message"] == "ready":
                asyncio.run(_ask(facts["grpc"]))
                break
        assert process.wait(10) == code
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def _ask(address: str) -> None:
    async with ChatClient(address, retries=ONCE) as chat:
        assert isinstance(await asyncio.wait_for(end_of(chat.ask("x")), 30), UnavailableError)
