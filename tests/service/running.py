"""A whole server around the fake engine: real gRPC on a free port, in this process and loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from engine.config import EngineConfig
from service.app import App
from service.settings import Settings
from tests.fakes import FakeEngine

HANGS_AFTER_S = 30.0  # a wait of so long has failed; what must be quick is measured by itself


def quick(**changes: Any) -> Settings:
    """Settings for tests: free ports, no waiting for balancers."""
    return Settings(
        **{
            "engine": EngineConfig(slots=4),
            "listen": "127.0.0.1:0",
            "metrics_listen": None,
            "propagation_s": 0.0,
            "grace_s": 10.0,
            "max_active_turns": 1,
            **changes,
        }
    )


@asynccontextmanager
async def running(engine: FakeEngine | None = None, **changes: Any) -> AsyncIterator[App]:
    """A ready server; stopped at the end, whatever the test did to it."""
    engine = engine or FakeEngine()
    app = App(quick(**changes), engine.opener())
    await app.start()
    await app.ready()
    try:
        yield app
    finally:
        engine.release()
        await app.close()


async def steps(engine: FakeEngine, count: int) -> None:
    """Waits until the engine has made so many decode steps in all."""
    assert await asyncio.to_thread(engine.wait_for_steps, count, HANGS_AFTER_S)


async def until(holds: Callable[[], bool], timeout_s: float = HANGS_AFTER_S) -> None:
    """Returns once `holds`; TimeoutError if it never does. For facts that nothing announces to a test."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - nothing to wait on: the fact belongs to another thread or process
            await asyncio.sleep(0.005)


def in_flight(app: App) -> int:
    """Turns that wait or play."""
    load = app.worker.load()
    return load.active_turns + load.queued_turns
