"""The service's core over a fake engine, for the tests beside this file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from engine.params import SamplingParams
from service.conversation import Conversations
from service.events import ChatMessage, Delta, Finished, ServiceEvent, TurnAdmitted, TurnEnded, TurnEvent, TurnRequest
from service.scheduler import Limits
from service.worker import Worker
from tests.fakes import FakeEngine

SOON_S = 30.0
LONG = SamplingParams(max_tokens=2_000)
Fact = TypeVar("Fact")
_numbers = count()


class HandClock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Core:
    """A started worker, its conversations, and everything that observers heard."""

    engine: FakeEngine
    worker: Worker
    conversations: Conversations
    facts: list[ServiceEvent]
    fatal: list[BaseException] = field(default_factory=list)

    def facts_of(self, kind: type[Fact]) -> list[Fact]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def ends(self) -> list[TurnEnded]:
        return self.facts_of(TurnEnded)

    def request(
        self,
        text: str = "Hi",
        *,
        session_id: str = "",
        caller: str = "",
        stop: tuple[str, ...] = (),
        in_s: float | None = None,
        priority: int = 0,
        sampling: SamplingParams | None = None,
        prompt_ids: tuple[int, ...] | None = None,
    ) -> TurnRequest:
        return TurnRequest(
            request_id=f"r{next(_numbers)}",
            prompt_ids=prompt_ids or tuple(self.engine.text.prompt_ids([ChatMessage("user", text)])),
            sampling=sampling or SamplingParams(),
            stop=stop,
            session_id=session_id,
            caller=caller,
            priority=priority,
            deadline_s=None if in_s is None else self.worker.clock() + in_s,
        )

    async def play(self, request: TurnRequest) -> list[TurnEvent]:
        """The whole turn."""
        async with asyncio.timeout(SOON_S):
            return [event async for event in self.conversations.turn(request)]

    async def until_tokens(self, request: TurnRequest, tokens: int) -> list[TurnEvent]:
        """Reads until so many tokens came, then leaves."""
        events: list[TurnEvent] = []
        async with asyncio.timeout(SOON_S), aclosing(self.conversations.turn(request)) as turn:
            async for event in turn:
                events.append(event)
                if len(ids(events)) >= tokens:
                    return events
        return events

    async def until(self, holds: Callable[[], bool], within_s: float = SOON_S) -> None:
        """Lets the loop run until `holds()`; no sleeping, only turns of the loop."""
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.to_thread(lambda: None)

    async def idle(self) -> None:
        """Every turn is over, on both sides of the thread."""
        await self.until(lambda: self.worker.load().active_turns == 0 and self.worker.load().queued_turns == 0)
        await self.until(lambda: len(self.ends()) >= len(self.facts_of(TurnAdmitted)))


@asynccontextmanager
async def running(
    engine: FakeEngine | None = None, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Core]:
    """A ready core that is stopped afterwards."""
    engine = engine or FakeEngine()
    facts: list[ServiceEvent] = []
    fatal: list[BaseException] = []
    worker = Worker(engine.opener(), limits, clock=clock, listener=facts.append, on_fatal=fatal.append)
    worker.start()
    await worker.ready()
    try:
        yield Core(engine, worker, Conversations(worker), facts, fatal)
    finally:
        engine.release()
        assert await worker.stop()


def text(events: list[TurnEvent]) -> str:
    """The answer as its reader sees it."""
    return "".join(event.text for event in events if isinstance(event, Delta))


def ids(events: list[TurnEvent]) -> list[int]:
    """Every id of the answer, in order; each delta's index is checked."""
    found: list[int] = []
    for event in events:
        if isinstance(event, Delta):
            assert event.index == len(found)
            found += event.token_ids
    return found


def finished(events: list[TurnEvent]) -> Finished:
    """The one end, which must be the last event and the only `Finished`."""
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, Finished)
    return last


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
    await asyncio.wait_for(begun.wait(), SOON_S)
    return task
