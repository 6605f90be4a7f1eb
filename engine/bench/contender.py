"""Whoever answers greedily: our engine, or one that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.bench.decode import play_turn
from engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Turn:
    """One greedy answer; `ids` is empty where they are not told.

    `seconds` and `cpu_seconds` run from its first token to its last; the latter is None where it is not known.
    """

    ids: tuple[int, ...]
    seconds: float
    cpu_seconds: float | None


class Contender(Protocol):
    """Whoever answers greedily."""

    def turn(self, prompt_ids: Sequence[int], new_tokens: int) -> Turn:
        """Answer from an empty context with exactly `new_tokens`."""


class Soloist:
    """Our engine as a contender."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kernels = engine.info.kernels

    def turn(self, prompt_ids: Sequence[int], new_tokens: int) -> Turn:
        """See Contender."""
        tokens, seconds, cpu_seconds = play_turn(self._engine, prompt_ids, new_tokens)
        return Turn(tuple(token.token_id for token in tokens), seconds, cpu_seconds)
