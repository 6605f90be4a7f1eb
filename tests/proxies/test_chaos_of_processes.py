"""Chaos by seed over two real processes: killed, stopped and continued under readers who leave, dawdle or hurry."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import aclosing

import pytest

from service.client import (
    Answer,
    ChatClient,
    DeadlineError,
    Delta,
    Event,
    Finished,
    OverloadedError,
    Resumed,
    UnavailableError,
)
from tests.proxies.conftest import Pair
from tests.proxies.load import DIFFERENT, question
from tests.proxies.replicas import Replica

RUNS = int(os.environ.get("CHAOS_RUNS", "12"))  # the full form sets 500
FIRST = int(os.environ.get("CHAOS_FIRST", "0"))  # a run that failed is played again by its number
READERS = 4


async def one_reader(chat: ChatClient, chance: random.Random, right: list[Answer], seen: Counter[str]) -> None:
    """Reads one turn as some client might. What comes is a beginning of the right answer, with one end."""
    number = chance.randrange(DIFFERENT)
    prompt, sampling = question(number)
    kind = chance.choice(["patient", "patient", "leaves", "dawdles", "hurries"])
    most = chance.choice([10, 40])
    leaves_after = chance.randint(1, 30)
    deadline_s = chance.uniform(0.05, 0.5) if kind == "hurries" else 30.0
    session = f"{chance.getrandbits(64):x}" if chance.random() < 0.5 else ""
    events: list[Event] = []
    stream = chat.stream(prompt, deadline_s=deadline_s, session_id=session, **{**sampling, "max_tokens": most})
    end = "left"
    try:
        async with aclosing(stream) as turn:
            async for event in turn:
                assert not isinstance(events[-1] if events else None, Finished), "nothing comes after the end"
                events.append(event)
                if isinstance(event, Finished):
                    end = event.reason
                if kind == "leaves" and len(events) > leaves_after:
                    break
                if kind == "dawdles":
                    await asyncio.sleep(0.005)
    except (DeadlineError, OverloadedError, UnavailableError) as error:
        # Who hurries may have no time left to ask the other one; nobody else may be told of a failure.
        if kind != "hurries":
            raise
        end = error.code.name
    deltas = [event for event in events if isinstance(event, Delta)]
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    shown = "".join(delta.text for delta in deltas)
    assert ids == list(right[number].token_ids[: len(ids)])
    # The last character may have been cut by the limit, which the whole answer goes on to say.
    assert right[number].text.startswith(shown.rstrip("\ufffd"))
    if end == "length":
        assert len(ids) == most
    elif kind in ("patient", "dawdles"):
        raise AssertionError(f"a {kind} reader's turn ended with {end}")
    seen[f"{kind}: {end}"] += 1
    seen["resumed"] += sum(isinstance(event, Resumed) for event in events)


class Two:
    """Two replicas, of which one may be away."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        self._coming: asyncio.Task[None] | None = None

    async def befall(self, chance: random.Random, seen: Counter[str]) -> None:
        """Nothing, a pause, or, where both serve, a death; the one that died comes again while others go on."""
        what = chance.choices(["nothing", "pause", "kill"], [3, 5, 2])[0]
        victim = chance.choice(self._replicas)
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        both = self._coming is None or self._coming.done()
        if what == "pause" and both:
            victim.pause()
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            victim.resume()
        elif what == "kill" and both:
            await asyncio.to_thread(victim.kill)
            self._coming = asyncio.create_task(asyncio.to_thread(victim.start))
        else:
            what = "nothing"
        seen[what] += 1

    async def both(self) -> None:
        if self._coming is not None:
            await self._coming


@pytest.mark.timeout(120 + 2 * RUNS)
async def test_promise_9_chaos_of_processes_by_seed(pair: Pair) -> None:
    seen: Counter[str] = Counter()
    two = Two(pair.replicas)
    async with ChatClient(pair.targets) as one, ChatClient(pair.targets[::-1]) as other:
        for run in range(FIRST, FIRST + RUNS):
            chance = random.Random(run)
            readers = [
                one_reader((one, other)[n % 2], random.Random(f"{run} {n}"), pair.right, seen) for n in range(READERS)
            ]
            try:
                async with asyncio.timeout(60):
                    await asyncio.gather(two.befall(chance, seen), *readers)
            except BaseException as error:
                error.add_note(f"run {run}")
                raise
        await two.both()
    print(f"{RUNS} runs: {dict(sorted(seen.items()))}")
    assert sum(seen[what] for what in ("nothing", "pause", "kill")) == RUNS
