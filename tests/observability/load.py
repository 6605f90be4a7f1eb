"""Readers of every kind, so that every figure has something to show: patient, impatient, too many, mistaken."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from service.client import ChatClient, ChatError
from service.client.answers import Delta, Resumed
from service.client.retries import Retries

ENDLESS: dict[str, Any] = {"logit_bias": {0: -100.0, 1: -100.0, 2: -100.0}}  # the embedded model's end tokens
ONCE = Retries(attempts=1)
UNTIL_LET_IN = Retries(attempts=100, longest_wait_s=0.5)


@dataclass
class Seen:
    """What became of the turns, as their readers counted it.

    Attributes:
        ends: finish reasons of those that were answered.
        refused: reasons of those that were not.
        resumed: causes of breaks that readers did not notice.
    """

    ends: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    resumed: Counter[str] = field(default_factory=Counter)


async def load(target: str, leaving: str, leave: Callable[[], None], lasts_s: float) -> Seen:
    """Readers of `target` for `lasts_s`, and one whose answer begins at `leaving`, which `leave()` tells to go."""
    seen = Seen()
    end_s = time.monotonic() + lasts_s
    await asyncio.gather(
        _patient(target, seen, end_s),
        _mistaken(target, seen, end_s),
        _busy(target, seen, end_s),
        _handed_over(target, leaving, leave, seen),
    )
    return seen


async def _busy(target: str, seen: Seen, end_s: float) -> None:
    """One with little time, while there is room; then those who take it."""
    await _in_a_hurry(target, seen)
    await asyncio.gather(_impatient(target, seen, end_s), _too_many(target, seen, end_s))


async def _turn(chat: ChatClient, seen: Seen, messages: Any, **fields: Any) -> str:
    try:
        answer = await chat.ask(messages, **fields)
    except ChatError as error:
        seen.refused[error.reason or error.code.name] += 1
        return ""
    seen.ends[answer.finished.reason] += 1
    for again in answer.resumed:
        seen.resumed[again.cause] += 1
    return answer.text


async def _patient(target: str, seen: Seen, end_s: float) -> None:
    """A conversation that grows: prefixes come from the cache."""
    async with ChatClient(target, retries=UNTIL_LET_IN) as chat:
        said: list[dict[str, str]] = []
        while time.monotonic() < end_s or len(said) < 4:
            said.append({"role": "user", "content": f"Tell me more about the number {len(said)}."})
            text = await _turn(chat, seen, said, session_id="patient", max_tokens=12)
            said.append({"role": "assistant", "content": text or "."})


async def _impatient(target: str, seen: Seen, end_s: float) -> None:
    """Leaves after a few words."""
    async with ChatClient(target, retries=UNTIL_LET_IN) as chat:
        while time.monotonic() < end_s:
            async with contextlib.aclosing(chat.stream("Count to a thousand.", **ENDLESS)) as events:
                async for event in events:
                    if isinstance(event, Delta) and event.index > 4:
                        break
            seen.ends["left"] += 1
            await asyncio.sleep(0.5)  # a reader's pace


async def _too_many(target: str, seen: Seen, end_s: float) -> None:
    """More at once than the queue holds."""
    async with ChatClient(target, retries=ONCE) as chat:
        while time.monotonic() < end_s:
            await asyncio.gather(*(_turn(chat, seen, f"Number {n}?", max_tokens=2) for n in range(8)))
            await asyncio.sleep(1.0)  # a crowd's pace


async def _mistaken(target: str, seen: Seen, end_s: float) -> None:
    """Asks for what does not exist."""
    async with ChatClient(target, retries=ONCE) as chat:
        while time.monotonic() < end_s:
            await _turn(chat, seen, "Hello", top_p=7.0)
            await asyncio.sleep(1.0)


async def _in_a_hurry(target: str, seen: Seen) -> None:
    """A deadline that comes in the middle of the answer."""
    async with ChatClient(target) as chat:
        await _turn(chat, seen, "A long story, please.", deadline_s=3.0, max_tokens=1500, **ENDLESS)


async def _handed_over(target: str, leaving: str, leave: Callable[[], None], seen: Seen) -> None:
    """Reads from a server that goes away, and goes on reading from another."""
    async with ChatClient([leaving, target], retries=UNTIL_LET_IN) as chat:
        left, more = False, 0
        async with contextlib.aclosing(chat.stream("Tell me a story.", max_tokens=1500, **ENDLESS)) as events:
            async for event in events:
                if isinstance(event, Resumed):
                    seen.resumed[event.cause] += 1
                elif isinstance(event, Delta) and not left:
                    left = True
                    leave()
                elif isinstance(event, Delta) and seen.resumed:
                    more += 1
                    if more == 5:
                        return
