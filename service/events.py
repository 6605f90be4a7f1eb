"""What a turn asks and what happens to it, as frozen dataclasses. Pure: no torch, asyncio, threading or clock.

Times are seconds of one monotonic clock that the caller names `now_s`. One file past 300 lines, since it is one
vocabulary: whoever asks what can happen to a turn or a server reads it from top to bottom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.history import Resumption
from engine.params import SamplingParams


class FinishReason(StrEnum):
    """How a turn ended in a `finished` event. The last three can be resumed."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DRAINING = "draining"


class ResumeMode(StrEnum):
    """How an answer that was broken off goes on. The metrics label has exactly these values."""

    EXACT = "exact"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `role` is one of system, user, assistant, tool."""

    role: str
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One admitted-or-not turn, already checked and converted.

    Attributes:
        request_id: unique in this process; never a metric label.
        prompt_ids: the rendered prompt.
        sampling: with the model's defaults filled in and a seed chosen.
        stop: texts that end the answer.
        session_id: empty for a turn without memory.
        priority: higher first.
        deadline_s: when the turn must have ended, or None.
        caller: who asks; sessions of different callers never meet, whatever they are called.
        trace: the caller's W3C `traceparent`, or empty.
        resumption: the answer so far, where one that was broken off goes on.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    session_id: str = ""
    priority: int = 0
    deadline_s: float | None = None
    caller: str = ""
    trace: str = ""
    resumption: Resumption | None = None

    @property
    def resumed(self) -> ResumeMode | None:
        """How it goes on, or None for a new answer."""
        if self.resumption is None:
            return None
        return ResumeMode.EXACT if self.resumption.exact else ResumeMode.FAST

    @property
    def emitted(self) -> tuple[int, ...]:
        """Ids of the answer that its reader has."""
        return self.resumption.emitted if self.resumption is not None else ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability under the model's own distribution, and its bytes."""

    token_id: int
    logprob: float
    token_bytes: bytes


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The chosen token's log-probability and the largest alternatives', largest first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The turn left the queue and its prompt is being read. `resume_token` is empty where it cannot be resumed."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    seed: int
    resumed: ResumeMode | None = None
    resume_token: bytes = b""


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer: whole characters, and the ids made since the last delta."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphUse:
    """How the decode steps of one turn were run. `eager_steps` maps an EagerReason's value to a count."""

    replays: int = 0
    eager_steps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn's one end. `completion_tokens` counts what a resumed answer had before."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    graph: GraphUse
    queue_s: float
    prefill_s: float
    first_token_s: float | None
    decode_s: float
    stop_text: str | None = None
    stop_token_id: int | None = None
    resume_token: bytes = b""


TurnEvent = Started | Delta | Finished


class Refusal(StrEnum):
    """Why a turn was not admitted. The metrics label has exactly these values."""

    INVALID_REQUEST = "invalid_request"
    QUEUE_FULL = "queue_full"
    CALLER_LIMIT = "caller_limit"
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    SESSION_BUSY = "session_busy"
    NOT_READY = "not_ready"
    DRAINING = "draining"


class TurnEnd(StrEnum):
    """How an admitted turn ended: in `finished` or with a status. The metrics label has exactly these values."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DRAINING = "draining"
    EXPIRED = "expired"
    DRAINED_IN_QUEUE = "drained_in_queue"
    INVALID = "invalid"
    SLOW_READER = "slow_reader"
    FAILED = "failed"
    ENGINE_LOST = "engine_lost"


class StallCause(StrEnum):
    """What a token had to wait for. The metrics label has exactly these values."""

    OTHER_SESSION = "other_session"  # steps of other turns
    PREFILL = "prefill"  # of other turns' prompts
    EAGER = "eager"  # its own step, which should have been a replay and was none
    CLIENT = "client"  # a reader that was behind
    HOST = "host"  # neither step nor prefill: the engine's thread did something else, or nothing


class DrainCause(StrEnum):
    """What made a server leave. The metrics label has exactly these values."""

    SIGNAL = "signal"  # SIGTERM or Ctrl-C: a roll-out, a scale-down, a person
    NODE_DISRUPTION = "node_disruption"  # its node was marked to go: a spot notice, a consolidation


class ClusterCall(StrEnum):
    """What is asked of the Kubernetes API. The metrics label has exactly these values."""

    DELETION_COST = "deletion_cost"
    DO_NOT_DISRUPT = "do_not_disrupt"
    WATCH_NODE = "watch_node"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class TurnAdmitted:
    """A turn was let into the queue. `trace` as in its request."""

    request_id: str
    prompt_tokens: int
    trace: str = ""


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """A turn was not let in. `caller` as in its request."""

    request_id: str
    reason: Refusal
    caller: str = ""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn left the queue; `cached_tokens` of its prompt were in its session's KV cache."""

    request_id: str
    queue_s: float
    prompt_tokens: int
    cached_tokens: int
    resumed: ResumeMode | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a turn: how long after its admission. Of that, `prefill_s` went to reading the prompt."""

    request_id: str
    since_admission_s: float
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenMade:
    """A later token, `gap_s` after the one before; `stalls`: (cause, seconds) of what it had to wait for."""

    request_id: str
    gap_s: float
    stalls: tuple[tuple[StallCause, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """An admitted turn's one end; every TurnAdmitted is followed by exactly one.

    Attributes:
        duration_s: since its admission.
        prompt_tokens, cached_tokens: zero for a turn that never started.
        completion_tokens: tokens that the reader was given, an end token included.
        discarded_tokens: tokens made beyond them, before the engine heard that the turn was over.
        replays, eager_steps: how all those decode steps were run; together completion + discarded.
        cancel_to_idle_s: from the wish to break off until the engine had stopped work on it; None if it was not
            broken off, or had not begun.
        queue_s, first_token_s: since its admission; None for what never came.
        caller, session_id: as in its request.
    """

    request_id: str
    end: TurnEnd
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    replays: int
    eager_steps: Mapping[str, int]
    cancel_to_idle_s: float | None = None
    queue_s: float | None = None
    first_token_s: float | None = None
    caller: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the worker is, now. `inter_token_s` is a running mean of recent decode steps, 0 before the first."""

    queued_turns: int
    active_turns: int
    predicted_wait_s: float
    inter_token_s: float
    kv_tokens_used: int
    kv_tokens_total: int
    draining: bool
    kv_tokens_host: int = 0


@dataclass(frozen=True, slots=True)
class EngineStateChanged:
    """The worker's engine came up or went down. `state` is one of loading, ready, draining, failed, stopped."""

    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SessionEvicted:
    """Idle sessions lost their KV cache: others needed the room."""

    kv_tokens: int


ServiceEvent = (
    TurnAdmitted | TurnRefused | TurnStarted | FirstToken | TokenMade | TurnEnded | EngineStateChanged | SessionEvicted
)
