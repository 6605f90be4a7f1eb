"""What the engine says happened. Plain facts; observers decide what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EagerReason(StrEnum):
    """Why a decode step was not a graph replay. The metrics label has exactly these values."""

    NO_CUDA = "no_cuda"
    DISABLED = "disabled"
    WARMING_UP = "warming_up"
    CAPTURE_FAILED = "capture_failed"
    OUT_OF_MEMORY = "out_of_memory"
    CONTEXT_BEYOND_GRAPHS = "context_beyond_graphs"
    UNSUPPORTED_REQUEST = "unsupported_request"
    SELF_CHECK_FAILED = "self_check_failed"


class CaptureCause(StrEnum):
    """Why a graph was captured."""

    START = "start"
    WEIGHTS_CHANGED = "weights_changed"


class CaptureOutcome(StrEnum):
    """How a capture ended."""

    CAPTURED = "captured"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class Progress:
    """Start-up moved on. `phase` is one of download, load, capture; `done` of `total` in `unit` (bytes, graphs)."""

    phase: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class GraphCaptured:
    """A capture ended. `graph` names the shape, e.g. `b2048_r1_greedy`; `prefill`: of chunks, not steps."""

    graph: str
    cause: CaptureCause
    outcome: CaptureOutcome
    seconds: float
    pool_bytes: int
    prefill: bool = False


@dataclass(frozen=True, slots=True)
class StepDone:
    """One decode step was run: `graph` names the replayed graph, or `eager` says why there was none."""

    graph: str | None
    eager: EagerReason | None
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """One prefill chunk of `tokens` was run: `graph` names the replayed graph, or `eager` says why there was none.

    Both are None of a player whose chunks are never captured, such as a generic model's.
    """

    tokens: int
    seconds: float
    graph: str | None = None
    eager: EagerReason | None = None


@dataclass(frozen=True, slots=True)
class VerifyMismatch:
    """A replayed step and its eager twin disagreed (`verify_every`)."""

    graph: str
    position: int
    replayed_id: int
    eager_id: int


@dataclass(frozen=True, slots=True)
class SelfChecked:
    """A graph was compared with its eager twin, and they agreed (`sound`) or not. Took `seconds`."""

    graph: str
    sound: bool
    seconds: float


EngineEvent = Progress | GraphCaptured | StepDone | PrefillDone | VerifyMismatch | SelfChecked
Listener = Callable[[EngineEvent], None]


def ignore(_: EngineEvent) -> None:
    """The listener of an engine nobody watches."""
