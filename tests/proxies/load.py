"""Readers that ask for one answer after the other, and compare each with the unbroken one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.client import Answer, ChatClient, ChatError

NO_END = dict.fromkeys(range(8), -100.0)
LENGTH = {"max_tokens": 100, "logit_bias": NO_END}
PROMPTS = ("Tell me of the cat", "Was ist das?", "play(note)", "안녕하세요", "0 1 2 3")
DIFFERENT = 10  # questions; the load asks them in turn


def question(number: int) -> tuple[str, dict[str, Any]]:
    """A prompt and how it is sampled; every other one greedily."""
    number %= DIFFERENT
    sampled = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0.0}
    return PROMPTS[number % len(PROMPTS)], {**LENGTH, **sampled}


async def unbroken(target: str) -> list[Answer]:
    """The answers where nothing is lost."""
    async with ChatClient(target) as chat:
        answers = []
        for number in range(DIFFERENT):
            prompt, sampling = question(number)
            answers.append(await chat.ask(prompt, **sampling))
    assert len({answer.token_ids for answer in answers}) >= DIFFERENT // 2
    return answers


@dataclass
class Seen:
    """What the readers saw.

    Attributes:
        turns: ended, well or not.
        failed: what their readers were told, of those that ended without an answer.
        wrong: numbers of turns whose text or ids are not the unbroken ones.
        resumed: breaks that readers did not notice, by cause.
        longest_pause_s: the longest of them.
    """

    turns: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    resumed: Counter[str] = field(default_factory=Counter)
    longest_pause_s: float = 0.0

    def __str__(self) -> str:
        right = self.turns - len(self.failed) - len(self.wrong)
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(self.resumed.items())) or "none"
        failed = f"; failed: {self.failed}" if self.failed else ""
        wrong = f"; other words in turns {self.wrong}" if self.wrong else ""
        return (
            f"{right} of {self.turns} turns with the unbroken words; resumed: {causes}; "
            f"longest pause {self.longest_pause_s:.1f} s{failed}{wrong}"
        )


class Load:
    """Readers in tasks of their own, one connection each."""

    def __init__(self, targets: str | Sequence[str], right: list[Answer], readers: int = 4) -> None:
        self.seen = Seen()
        self._targets = targets
        self._right = right
        self._stopped = False
        self._numbers: Iterator[int] = iter(())
        self._readers = readers

    async def run(self, turns: int) -> Seen:
        """So many turns, or as many as there are until `stop`."""
        self._numbers = iter(range(turns))
        await asyncio.gather(*(self._reader() for _ in range(self._readers)))
        return self.seen

    def stop(self) -> None:
        """No turn begins any more."""
        self._stopped = True

    async def _reader(self) -> None:
        async with ChatClient(self._targets) as chat:
            for number in self._numbers:
                if self._stopped:
                    return
                await self._turn(chat, number)

    async def _turn(self, chat: ChatClient, number: int) -> None:
        prompt, sampling = question(number)
        right = self._right[number % DIFFERENT]
        try:
            answer = await chat.ask(prompt, deadline_s=60.0, **sampling)
        except ChatError as error:
            self.seen.failed.append(f"turn {number}: {error.code.name} {error.reason} {error}")
        else:
            if (answer.text, answer.token_ids) != (right.text, right.token_ids):
                self.seen.wrong.append(number)
            for again in answer.resumed:
                self.seen.resumed[again.cause] += 1
                self.seen.longest_pause_s = max(self.seen.longest_pause_s, again.paused_s)
        finally:
            self.seen.turns += 1
