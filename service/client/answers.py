"""What a conversation is made of and what comes back, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.client.errors import bad_request
from soloist.v1 import chat_pb2

Role = Literal["system", "user", "assistant"]
_ROLES = {
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    name: str = ""


Messages = str | Sequence[Message | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Started:
    """The turn left the queue. Times are seconds."""

    request_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    seed: int
    resume_mode: str = ""
    resume_token: bytes = b""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer was broken off and goes on with the next delta, without a repeat or a gap.

    Attributes:
        mode: exact, with the words of the unbroken answer, or fast.
        cause: what broke it: draining, cancelled, or the status of the call that failed.
        target: the address that goes on.
        request_id: under which its log has that.
        tokens: that had come before.
        paused_s: from the break until it went on.
    """

    mode: str
    cause: str
    target: str
    request_id: str
    tokens: int
    paused_s: float


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token, the natural logarithm of its probability, and its bytes."""

    token_id: int
    logprob: float
    token_bytes: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token and the likeliest ones, largest first."""

    chosen: Logprob
    top: tuple[Logprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer. `index` is the position of the first of `token_ids` in the answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer's end. `reason` is stop, length, tool_calls, cancelled, deadline or draining; times are seconds.

    A newer server's other reasons read `unknown`.

    `eager_steps` maps a reason to the decode steps that were no graph replay for it.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    replays: int
    eager_steps: Mapping[str, int]
    queue_s: float
    prefill_s: float
    first_token_s: float
    decode_s: float
    stop_text: str | None = None
    stop_token_id: int | None = None
    resume_token: bytes = b""


Event = Started | Resumed | Delta | Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    started: Started
    finished: Finished
    logprobs: tuple[TokenLogprobs, ...] = ()
    resumed: tuple[Resumed, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """What a reader has of an answer that broke off, enough to go on with it.

    Attributes:
        resume_token: of its Started, or of the Finished that says it can be resumed.
        token_ids: of the deltas so far. Without them the answer comes again from its first word, and is the same one.
    """

    resume_token: bytes
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphState:
    """Whether decode steps are graph replays; if not, `eager_reason` says why."""

    enabled: bool
    captured: int
    pool_bytes: int
    context_tokens: int
    eager_reason: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What is served. `limits` maps the names of soloist.v1.Limits to figures.

    `decoder` is `native`, or `transformers` and its version, which is slower.
    """

    model: str
    version: str
    device: str
    precision: str
    numerics_fingerprint: str
    graphs: GraphState
    limits: Mapping[str, int] = field(default_factory=dict)
    decoder: str = "native"


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """How busy a server is. Times are seconds."""

    active_turns: int
    queued_turns: int
    predicted_wait_s: float
    inter_token_s: float
    kv_tokens_used: int
    kv_tokens_total: int
    draining: bool


def to_proto(messages: Messages) -> list[chat_pb2.Message]:
    """Checks and converts a conversation; a bare text is one user message. BadRequestError names the place."""
    if isinstance(messages, str):
        messages = (Message("user", messages),)
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(path: str, message: Message | Mapping[str, str]) -> chat_pb2.Message:
    if isinstance(message, Message):
        role, content, name = str(message.role), message.content, message.name
    else:
        unknown = sorted(set(message) - {"role", "content", "name"})
        if unknown:
            raise bad_request(f"{path}.{unknown[0]}", "is no field of a message; role, content and name are")
        role, content, name = message.get("role", ""), message.get("content", ""), message.get("name", "")
    if role not in _ROLES:
        raise bad_request(f"{path}.role", f"must be one of {', '.join(_ROLES)}; got {role!r}")
    return chat_pb2.Message(
        role=_ROLES[role], content=utf8(f"{path}.content", content), name=utf8(f"{path}.name", name)
    )


def utf8(path: str, text: str) -> str:
    """`text` if it can be sent: a terminal's invalid bytes arrive as lone surrogates, which protobuf cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad_request(path, f"is not valid Unicode text at character {error.start}") from None
    return text


def from_proto(event: chat_pb2.ChatEvent) -> Event | None:
    """One event; None for a kind that this library does not know yet."""
    match event.WhichOneof("event"):
        case "started":
            said = event.started
            return Started(
                said.request_id,
                said.model,
                said.prompt_tokens,
                said.cached_tokens,
                said.queue_seconds,
                said.seed,
                _resume_mode(said.resume_mode),
                said.resume_token,
            )
        case "delta":
            delta = event.delta
            return Delta(delta.index, delta.text, tuple(delta.token_ids), tuple(map(_logprobs, delta.logprobs)))
        case "finished":
            return _finished(event.finished)
    return None


def _resume_mode(mode: int) -> str:
    """exact or fast; empty for a fresh answer."""
    if mode == chat_pb2.RESUME_MODE_UNSPECIFIED:
        return ""
    return "fast" if mode == chat_pb2.RESUME_MODE_FAST else "exact"


def _finish_reason(reason: int) -> str:
    if reason not in chat_pb2.FinishReason.values():
        return "unknown"
    return chat_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()  # type: ignore[arg-type]


def _logprobs(entry: chat_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(_logprob(entry.chosen), tuple(map(_logprob, entry.top)))


def _logprob(entry: chat_pb2.Logprob) -> Logprob:
    return Logprob(entry.token_id, entry.logprob, entry.bytes)


def _finished(end: chat_pb2.Finished) -> Finished:
    cause = end.stop.WhichOneof("cause")
    return Finished(
        reason=_finish_reason(end.reason),
        prompt_tokens=end.usage.prompt_tokens,
        completion_tokens=end.usage.completion_tokens,
        cached_tokens=end.usage.cached_tokens,
        replays=end.graph.replays,
        eager_steps=dict(end.graph.eager_steps),
        queue_s=end.timings.queue_seconds,
        prefill_s=end.timings.prefill_seconds,
        first_token_s=end.timings.time_to_first_token_seconds,
        decode_s=end.timings.decode_seconds,
        stop_text=end.stop.text if cause == "text" else None,
        stop_token_id=end.stop.token_id if cause == "token_id" else None,
        resume_token=end.resume_token,
    )
