"""What a running turn yields, one value at a time."""

from __future__ import annotations

from dataclasses import dataclass

from engine.events import EagerReason


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` prompt tokens are in the KV cache, `cached` of them from an earlier turn."""

    cached: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer.

    Attributes:
        token_id: the id.
        end: it is an end or stop token; the turn ends with it.
        eager: why its step was no replay, or None for a replay.
        logprob: of this token under the model's own distribution, where asked for.
        top: (id, logprob) of the likeliest tokens, largest first, where asked for.
    """

    token_id: int
    end: bool
    eager: EagerReason | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


TurnStep = Prefilled | Token
