"""What of the engine's and the node's news becomes an Event of the pod. Pure: the caller brings the clock.

A cluster keeps Events for an hour and all of them pass through one API, so each kind is told at once, and then at most
once in EVERY_S with a count. The kinds are a closed set: graphs and requests cannot make more of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from engine.events import CaptureOutcome, EagerReason, EngineEvent, GraphCaptured, PrefillDone, StepDone, VerifyMismatch

EVERY_S: Final = 600.0
AGAIN_S: Final = 10.0  # after an attempt that the API did not hear

# As configured, or on the way there: nothing that an operator should look at.
_EXPECTED: Final = frozenset({EagerReason.NO_CUDA, EagerReason.DISABLED, EagerReason.WARMING_UP})


class Kind(Enum):
    """`value` is (reason, action, whether it is a warning) as in events.k8s.io."""

    CAPTURE_FAILED = ("GraphCaptureFailed", "CaptureGraph", True)
    EAGER_STEPS = ("EagerSteps", "Decode", True)
    EAGER_PREFILLS = ("EagerPrefills", "Prefill", True)
    REPLAY_WRONG = ("ReplayMismatch", "CompareReplay", True)
    NODE_TOLD_TO_GO = ("NodeTaintedForDisruption", "GiveWay", False)
    NODE_GOES = ("NodeDisrupted", "HandOver", False)


@dataclass(frozen=True, slots=True)
class Notice:
    """One Event. `note` is what it says, at most 1 kB as the API wants it."""

    kind: Kind
    note: str


class Notices:
    """Collects what is to be told. `hear` and `take` want the same lock around them."""

    def __init__(self) -> None:
        self._told_s: dict[tuple[Kind, str], float] = {}
        self._more: dict[tuple[Kind, str], int] = {}
        self._ready: list[Notice] = []
        self._again_s = 0.0  # before then nothing is taken

    def hear(self, kind: Kind, what: str, now_s: float, about: str = "") -> bool:
        """Something happened. `what`, of a closed set, tells two of a kind apart. Whether there is now more to take."""
        key = (kind, what)
        told_s = self._told_s.get(key)
        if told_s is not None and now_s < told_s + EVERY_S:
            self._more[key] = self._more.get(key, 0) + 1
            return False
        more = self._more.pop(key, 0)
        self._told_s[key] = now_s
        note = f"{what} ({about})" if about else what
        self._ready.append(Notice(kind, f"{note}; {more} more since it was told last" if more else note))
        return True

    def due_s(self) -> float:
        """When there is something to take: a time that may have passed, or never (infinite)."""
        return self._again_s if self._ready else math.inf

    def take(self, now_s: float) -> list[Notice]:
        """What is to be told now."""
        if now_s < self._again_s:
            return []
        ready, self._ready = self._ready, []
        return ready

    def put_back(self, notices: Sequence[Notice], now_s: float) -> None:
        """They were not heard: there will be another attempt. The kinds are a closed set, so these are few."""
        self._ready = [*notices, *self._ready]
        self._again_s = now_s + AGAIN_S


def worth_telling(event: EngineEvent) -> tuple[Kind, str, str] | None:
    """Kind, what and about of an engine's event; None for nearly all: this is called for each token."""
    match event:
        case StepDone(eager=EagerReason() as reason) if reason not in _EXPECTED:
            return Kind.EAGER_STEPS, f"decode steps are no graph replays: {reason.value}", ""
        case PrefillDone(eager=EagerReason() as reason) if reason not in _EXPECTED:
            return Kind.EAGER_PREFILLS, f"prompts are read without graphs: {reason.value}", ""
        case GraphCaptured() if event.outcome is not CaptureOutcome.CAPTURED:
            return Kind.CAPTURE_FAILED, f"a graph could not be captured: {event.outcome.value}", event.graph
        case VerifyMismatch():
            return Kind.REPLAY_WRONG, "a replayed step and its eager twin disagree", event.graph
        case _:
            return None
