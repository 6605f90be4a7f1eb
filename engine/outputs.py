"""What a running turn yields, one value at a time."""

from __future__ import annotations

from dataclasses import dataclass

from engine.events import EagerReason
from engine.history import Segment


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` tokens to read are in the KV cache, `cached` of them from an earlier turn.

    A turn's first one also says what its exact resumption will need: how the `cached` tokens came about (`history`),
    and how many tokens of the answer are read like a prompt (`read`, see engine.history.Resumption).
    """

    cached: int
    done: int
    total: int
    history: tuple[Segment, ...] = ()
    read: int = 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """One decode step repeated a token that was known; `eager` says why it was no replay of a graph."""

    eager: EagerReason | None


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


TurnStep = Prefilled | Replayed | Token
