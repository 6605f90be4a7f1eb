"""Proto to domain and back. Bad input stops here: every field is checked, and what is not served is refused by name."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import Message as ProtoMessage
from google.protobuf.unknown_fields import UnknownFieldSet

from engine.errors import InvalidRequestError
from engine.params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, SamplingParams
from engine.text.form import AnswerForm
from service.events import ChatMessage, Delta, Finished, FinishReason, Logprobs, Started, TokenLogprob, TurnEvent
from service.rpc.limits import (
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PRIORITY,
    MAX_REQUEST_BYTES,
    MAX_SESSION_ID_CHARS,
)
from service.rpc.resuming import MODES_TOLD, AskedResume, asked_resume
from soloist.v1 import chat_pb2

if TYPE_CHECKING:
    from soloist.v1.chat_pb2 import ChatEvent, ChatRequest, CountTokensRequest

_ROLES = {
    chat_pb2.ROLE_SYSTEM: "system",
    chat_pb2.ROLE_USER: "user",
    chat_pb2.ROLE_ASSISTANT: "assistant",
}
_REASONS = {
    FinishReason.STOP: chat_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: chat_pb2.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: chat_pb2.FINISH_REASON_TOOL_CALLS,
    FinishReason.CANCELLED: chat_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: chat_pb2.FINISH_REASON_DEADLINE,
    FinishReason.DRAINING: chat_pb2.FINISH_REASON_DRAINING,
}
NOT_SERVED = "is not served by this version; leave it unset"


class SamplingDefaults(Protocol):
    """What the model's authors set for generation, None where they set nothing."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked ChatRequest, all but its prompt's ids."""

    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    stop: tuple[str, ...]
    session_id: str
    priority: int
    resume: AskedResume | None = None
    form: AnswerForm | None = None


def asked_turn(
    request: ChatRequest,
    defaults: SamplingDefaults,
    vocabulary: int,
    choose_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> Asked:
    """Check one ChatRequest whole, before anything is spent on it.

    An unset sampling field takes the model's own default, else SamplingParams'. An unset seed is chosen here.

    Raises:
        InvalidRequestError: names the field by its path in the proto.
    """
    _check_size(request)
    _refuse_unserved(request)
    messages = chat_messages(request.messages)
    _at_most("stop", len(request.stop), MAX_STOP_STRINGS, "texts")
    for index, stop in enumerate(request.stop):
        _at_most(f"stop[{index}]", len(stop), MAX_STOP_STRING_CHARS, "characters")
        if not stop:
            raise InvalidRequestError(f"stop[{index}]", "is empty and would end every answer at once; leave it out")
    _at_most("session_id", len(request.session_id), MAX_SESSION_ID_CHARS, "characters")
    if not request.session_id.isprintable():
        raise InvalidRequestError("session_id", "must hold printable characters only")
    if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
        raise InvalidRequestError("priority", f"must be from {-MAX_PRIORITY} to {MAX_PRIORITY}; got {request.priority}")
    refuse_unknown(request.resume, "resume")
    resume = asked_resume(request.resume, vocabulary) if request.HasField("resume") else None
    sampling = _sampling(request, defaults, choose_seed, resume)
    sampling.check_vocabulary(vocabulary)
    form = _form(request.response_format)
    return Asked(messages, sampling, tuple(request.stop), request.session_id, request.priority, resume, form)


def counted_messages(request: CountTokensRequest) -> tuple[ChatMessage, ...]:
    """Check one CountTokensRequest. InvalidRequestError names the field."""
    _check_size(request)
    refuse_unknown(request, "request")
    if request.tools:
        raise InvalidRequestError("tools", NOT_SERVED)
    return chat_messages(request.messages)


def chat_messages(messages: Sequence[chat_pb2.Message]) -> tuple[ChatMessage, ...]:
    """Check and convert a conversation. InvalidRequestError names the field, e.g. `messages[2].role`."""
    if not messages:
        raise InvalidRequestError("messages", "must hold at least one message")
    _at_most("messages", len(messages), MAX_MESSAGES, "messages")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def _message(path: str, message: chat_pb2.Message) -> ChatMessage:
    refuse_unknown(message, path)
    if message.role == chat_pb2.ROLE_TOOL:
        raise InvalidRequestError(f"{path}.role", "ROLE_TOOL is not served by this version; leave the message out")
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequestError(
            f"{path}.role", f"must be ROLE_SYSTEM, ROLE_USER or ROLE_ASSISTANT; got {_role_name(message.role)}"
        )
    if message.tool_calls:
        raise InvalidRequestError(f"{path}.tool_calls", NOT_SERVED)
    if message.tool_call_id:
        raise InvalidRequestError(f"{path}.tool_call_id", NOT_SERVED)
    _at_most(f"{path}.content", len(message.content.encode()), MAX_MESSAGE_BYTES, "bytes")
    _at_most(f"{path}.name", len(message.name), MAX_NAME_CHARS, "characters")
    return ChatMessage(role, message.content, message.name or None)


def _role_name(value: int) -> str:
    return chat_pb2.Role.Name(value) if value in chat_pb2.Role.values() else str(value)  # type: ignore[arg-type]


def _refuse_unserved(request: ChatRequest) -> None:
    refuse_unknown(request, "request")
    if request.tools:
        raise InvalidRequestError("tools", NOT_SERVED)


def _form(asked: chat_pb2.ResponseFormat) -> AnswerForm | None:
    """The form that the answer must have, not compiled yet; None for plain text."""
    refuse_unknown(asked, "response_format")
    match asked.WhichOneof("format"):
        case "json_schema":
            return AnswerForm.json_schema(asked.json_schema)
        case "regex":
            return AnswerForm.regex(asked.regex)
        case "choice":
            refuse_unknown(asked.choice, "response_format.choice")
            return AnswerForm.choice(tuple(asked.choice.choices))
    refuse_unknown(asked.text, "response_format.text")
    return None


def refuse_unknown(message: ProtoMessage, path: str) -> None:
    """Refuse fields of a newer proto: answering as if they were not there would be a silent lie."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise InvalidRequestError(
            path, f"carries field number {unknown[0].field_number}, which this server's soloist.v1 does not know"
        )


def _check_size(request: ProtoMessage) -> None:
    _at_most("request", request.ByteSize(), MAX_REQUEST_BYTES, "bytes")


def _at_most(field: str, value: int, limit: int, unit: str) -> None:
    if value > limit:
        raise InvalidRequestError(field, f"holds at most {limit} {unit}; got {value}")


def _sampling(
    request: ChatRequest, defaults: SamplingDefaults, choose_seed: Callable[[], int], resume: AskedResume | None
) -> SamplingParams:
    """A resumed answer keeps the parameters that it began with; what the request says too must be the same."""
    given: dict[str, object] = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        if (value := getattr(defaults, name)) is not None
    }
    for name in (
        "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "logprobs", "top_logprobs",
    ):  # fmt: skip
        if request.HasField(name):
            given[name] = getattr(request, name)
            if resume is not None:
                resume.check_same(name, given[name])
    given |= resume.token.scalars if resume is not None else {}
    given.setdefault("seed", choose_seed())
    return SamplingParams(
        stop_token_ids=tuple(request.stop_token_ids),
        logit_bias=dict(request.logit_bias),
        **given,  # type: ignore[arg-type]
    )


def chat_event(event: TurnEvent, model: str) -> ChatEvent:
    """One domain event as the proto's."""
    match event:
        case Delta():
            return chat_pb2.ChatEvent(delta=_delta(event))
        case Started():
            return chat_pb2.ChatEvent(
                started=chat_pb2.Started(
                    request_id=event.request_id,
                    model=model,
                    prompt_tokens=event.prompt_tokens,
                    cached_tokens=event.cached_tokens,
                    queue_seconds=event.queue_s,
                    seed=event.seed,
                    resume_mode=MODES_TOLD[event.resumed],
                    resume_token=event.resume_token,
                )
            )
        case Finished():
            return chat_pb2.ChatEvent(finished=_finished(event))


def _delta(event: Delta) -> chat_pb2.Delta:
    return chat_pb2.Delta(
        index=event.index, text=event.text, token_ids=event.token_ids, logprobs=_logprobs(event.logprobs)
    )


def _logprobs(logprobs: Iterable[Logprobs]) -> list[chat_pb2.TokenLogprobs]:
    return [
        chat_pb2.TokenLogprobs(chosen=_logprob(entry.chosen), top=[_logprob(other) for other in entry.top])
        for entry in logprobs
    ]


def _logprob(entry: TokenLogprob) -> chat_pb2.Logprob:
    return chat_pb2.Logprob(token_id=entry.token_id, logprob=entry.logprob, bytes=entry.token_bytes)


def _finished(event: Finished) -> chat_pb2.Finished:
    finished = chat_pb2.Finished(
        reason=_REASONS[event.reason],
        usage=chat_pb2.Usage(
            prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens,
            cached_tokens=event.cached_tokens,
        ),
        graph=chat_pb2.GraphUse(replays=event.graph.replays, eager_steps=dict(event.graph.eager_steps)),
        timings=chat_pb2.Timings(
            queue_seconds=event.queue_s,
            prefill_seconds=event.prefill_s,
            time_to_first_token_seconds=event.first_token_s or 0.0,
            decode_seconds=event.decode_s,
        ),
        resume_token=event.resume_token,
    )
    if event.stop_text is not None:
        finished.stop.text = event.stop_text
    elif event.stop_token_id is not None:
        finished.stop.token_id = event.stop_token_id
    return finished
