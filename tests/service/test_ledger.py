"""Each turn's account: what it says of time."""

from __future__ import annotations

import asyncio
import time

from service.events import TurnEnd
from tests.fakes import FakeEngine, endless
from tests.service.core import LONG, running, started


async def test_cancel_to_idle_is_the_time_until_the_engine_had_stopped() -> None:
    engine = FakeEngine(answer=endless)
    async with running(engine) as core:
        engine.hold()
        engine.allow(3)
        playing = await started(core, core.request(sampling=LONG))
        await core.until(lambda: engine.decode_steps == 3 and engine.held.is_set())
        wished_s = time.monotonic()
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await asyncio.to_thread(time.sleep, 0.05)  # the step under way takes so long
        assert not core.ends()  # the reader has left, and the engine is still at work
        engine.allow(1)
        await core.until(lambda: len(core.ends()) == 1)
        known_s = time.monotonic() - wished_s
        [end] = core.ends()

    assert end.end is TurnEnd.CANCELLED
    assert end.cancel_to_idle_s is not None
    assert 0.05 <= end.cancel_to_idle_s <= known_s
    assert engine.decode_steps == 4


async def test_a_turn_that_waited_had_nothing_to_come_to_rest_from() -> None:
    engine = FakeEngine(answer=endless)
    async with running(engine) as core:
        playing = await started(core, core.request(sampling=LONG))
        waiting = asyncio.create_task(core.play(core.request("never played")))
        await core.until(lambda: core.worker.load().queued_turns == 1)
        waiting.cancel()
        await core.until(lambda: len(core.ends()) == 1)
        [end] = core.ends()
        playing.cancel()
        await asyncio.gather(playing, waiting, return_exceptions=True)

    assert end.end is TurnEnd.CANCELLED
    assert end.cancel_to_idle_s is None
    assert end.queue_s is None


async def test_the_account_has_the_turns_times_and_whose_it_was() -> None:
    async with running() as core:
        await core.play(core.request("Hi", session_id="s", caller="key:web"))
        [end] = core.ends()

    assert end.queue_s is not None
    assert end.first_token_s is not None
    assert 0 <= end.queue_s <= end.first_token_s <= end.duration_s
    assert (end.caller, end.session_id) == ("key:web", "s")
