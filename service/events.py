"""What a turn asks and what happens to it, as frozen dataclasses. Pure: no torch, asyncio, threading or clock.

Times are seconds of one monotonic clock that the caller names `now_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.params import SamplingParams


class FinishReason(StrEnum):
    """How a turn ended in a `finished` event. The last three can be resumed."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DRAINING = "draining"


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
        include_logprobs: whether deltas carry logprobs.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    session_id: str = ""
    priority: int = 0
    deadline_s: float | None = None


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
    """The turn left the queue and its prompt is being read."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    seed: int


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
    """The turn's one end."""

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


TurnEvent = Started | Delta | Finished
