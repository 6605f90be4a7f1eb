"""Self-checks in a server: made while nobody plays, and what a mismatch does to readiness."""

from __future__ import annotations

import asyncio

from engine.errors import FatalDeviceError
from engine.events import EagerReason
from service.client import ChatClient
from service.ops.health import Readiness
from service.stage import SELF_CHECK_EVERY_S
from tests.fakes import FakeEngine, endless
from tests.service.core import LONG, HandClock, running, started
from tests.service.running import running as running_app
from tests.service.running import until


async def test_it_is_made_now_and_then_while_nobody_plays() -> None:
    clock = HandClock()
    async with running(FakeEngine(answer=endless), clock=clock) as core:
        await core.play(core.request("x"))
        assert core.engine.self_checks == 0
        for checks in (1, 2):
            clock.now_s += SELF_CHECK_EVERY_S
            await core.until(lambda: core.engine.self_checks == checks)  # noqa: B023 - awaited at once
        core.engine.hold()
        core.engine.allow(1)
        turn = await started(core, core.request(sampling=LONG))
        clock.now_s += SELF_CHECK_EVERY_S
        core.engine.allow(5)
        made = core.engine.decode_steps
        assert await asyncio.to_thread(core.engine.wait_for_steps, made + 2)
        assert core.engine.self_checks == 2
        core.engine.release()
        await turn
        await core.until(lambda: core.engine.self_checks == 3)


async def test_without_graphs_there_is_one_attempt() -> None:
    clock = HandClock()
    async with running(FakeEngine(eager=EagerReason.NO_CUDA), clock=clock) as core:
        for _ in range(3):
            clock.now_s += SELF_CHECK_EVERY_S
            await core.play(core.request("x"))
            await core.until(lambda: core.engine.self_checks == 1)


async def test_promise_22_a_mismatch_turns_readiness_off_and_answers_go_on() -> None:
    engine = FakeEngine()
    async with running_app(engine) as app, ChatClient(app.address) as chat:
        assert app.health.state is Readiness.SERVING
        engine.check_mismatch = True
        app.worker._stage._check_due_s = 0.0
        await until(lambda: app.health.state is Readiness.UNSOUND)
        assert app.health.serving is False
        assert (await chat.ask("x")).finished.reason == "stop"


async def test_a_device_lost_in_a_check_is_lost() -> None:
    engine = FakeEngine()
    clock = HandClock()
    async with running(engine, clock=clock) as core:

        def lost() -> bool:
            raise FatalDeviceError("gone")

        engine.self_check = lost  # type: ignore[method-assign]
        clock.now_s += SELF_CHECK_EVERY_S
        await core.until(lambda: len(core.fatal) == 1)
