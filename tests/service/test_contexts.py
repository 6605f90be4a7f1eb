"""service.contexts: who keeps a context, who moves to the host, and who comes back to what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import FatalDeviceError, OutOfDeviceMemoryError
from service.events import SessionEvicted, Started
from service.scheduler import Limits
from tests.fakes import FakeEngine
from tests.service.core import Core, running

PER_TOKEN = (1 << 20) // (2 * 4096)  # of the fake's cache


def host(tokens: int) -> Limits:
    return Limits(slots=2, host_kv_bytes=tokens * PER_TOKEN)


async def visit(core: Core, sessions: Sequence[str]) -> list[int]:
    """A turn of each of these sessions; how much of each prompt was in its cache."""
    cached = []
    for session_id in sessions:
        events = await core.play(core.request(f"it is {session_id}", session_id=session_id))
        assert isinstance(events[0], Started)
        cached.append(events[0].cached_tokens)
    return cached


async def test_a_returning_session_pays_only_for_its_new_turn() -> None:
    async with running(FakeEngine(slots=2), host(10_000)) as core:
        first = await visit(core, "abcde")
        assert core.engine.saves == 3
        assert core.worker.load().kv_tokens_host > 0
        again = await visit(core, "abcde")
        assert first == [0] * 5
        assert all(tokens == len(core.engine.prompts[0]) - 1 for tokens in again)
        assert core.engine.restores == 5
        assert core.facts_of(SessionEvicted) == []
        assert core.engine.contexts_open == 2


async def test_the_host_is_bounded_and_forgets_the_oldest() -> None:
    async with running(FakeEngine(slots=2), host(100)) as core:
        await visit(core, "abcdef")
        await core.until(lambda: len(core.facts_of(SessionEvicted)) > 0)
        assert 0 < core.worker.load().kv_tokens_host <= 100
        assert (await visit(core, "a"))[0] == 0, "the oldest is forgotten"


@pytest.mark.parametrize("room", [0, 3])
async def test_without_room_on_the_host_nothing_is_copied(room: int) -> None:
    async with running(FakeEngine(slots=2), host(room)) as core:
        await visit(core, "abc")
        await core.until(lambda: len(core.facts_of(SessionEvicted)) == 1)
        assert core.engine.saves == 0
        assert core.worker.load().kv_tokens_host == 0


async def test_a_copy_that_fails_costs_the_session_its_cache_and_nobody_else_anything() -> None:
    engine = FakeEngine(slots=2)
    engine.save_fault = OutOfDeviceMemoryError("no pinned memory")
    async with running(engine, host(10_000)) as core:
        assert await visit(core, "abca") == [0, 0, 0, 0]
        assert engine.saves == 2


async def test_a_device_lost_while_copying_is_lost() -> None:
    engine = FakeEngine(slots=2)
    async with running(engine, host(10_000)) as core:
        await visit(core, "ab")
        engine.save_fault = FatalDeviceError("gone")
        with pytest.raises(Exception, match="lost its engine"):
            await visit(core, "c")
        assert isinstance(core.fatal[0], FatalDeviceError)
