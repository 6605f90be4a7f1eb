"""Every field of a request is checked; what is not served is refused by name; the caps hold at the limit and beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine import params
from engine.errors import InvalidRequestError
from engine.params import SamplingParams
from engine.text import AnswerForm
from service.events import (
    ChatMessage,
    Delta,
    Finished,
    FinishReason,
    GraphUse,
    Logprobs,
    Started,
    TokenLogprob,
    TurnRequest,
)
from service.resume import make_token
from service.rpc import limits
from service.rpc.convert import Asked, asked_turn, chat_event, counted_messages
from soloist.v1 import chat_pb2

VOCABULARY = 5000


@dataclass(frozen=True)
class Defaults:
    """A model's generation config."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def user(content: str = "Hi", **fields: object) -> chat_pb2.Message:
    return chat_pb2.Message(role=chat_pb2.ROLE_USER, content=content, **fields)  # type: ignore[arg-type]


def choosing(*choices: str) -> chat_pb2.ResponseFormat:
    return chat_pb2.ResponseFormat(choice=chat_pb2.ChoiceFormat(choices=choices))


def asked(defaults: Defaults | None = None, **fields: object) -> Asked:
    fields = {"messages": [user()], **fields}
    request = chat_pb2.ChatRequest(**fields)  # type: ignore[arg-type]
    return asked_turn(request, defaults or Defaults(), VOCABULARY, choose_seed=lambda: 7)


def refused(**fields: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        asked(**fields)  # type: ignore[arg-type]
    return caught.value


def test_only_messages_are_needed() -> None:
    turn = asked()

    assert turn.messages == (ChatMessage("user", "Hi"),)
    assert turn.sampling == SamplingParams(seed=7)
    assert (turn.stop, turn.session_id, turn.priority) == ((), "", 0)


def test_every_field_that_is_served_arrives() -> None:
    turn = asked(
        messages=[
            chat_pb2.Message(role=chat_pb2.ROLE_SYSTEM, content="S"),
            user("U", name="Ada"),
            chat_pb2.Message(role=chat_pb2.ROLE_ASSISTANT, content="A"),
            user("V"),
        ],
        session_id="s",
        max_tokens=9,
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=1.0,
        seed=2**64 - 1,
        stop=["x", "y"],
        stop_token_ids=[3],
        logit_bias={4: -100.0},
        logprobs=True,
        top_logprobs=5,
        priority=-3,
        response_format=chat_pb2.ResponseFormat(text=chat_pb2.TextFormat()),
    )

    assert [message.role for message in turn.messages] == ["system", "user", "assistant", "user"]
    assert turn.messages[1].name == "Ada"
    assert turn.sampling == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=1.0,
        seed=2**64 - 1,
        stop_token_ids=(3,),
        logit_bias={4: -100.0},
        logprobs=True,
        top_logprobs=5,
    )
    assert (turn.stop, turn.session_id, turn.priority) == (("x", "y"), "s", -3)


def test_every_field_of_the_proto_is_served_or_refused() -> None:
    served = {
        "messages", "session_id", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "logit_bias", "logprobs",
        "top_logprobs", "priority", "resume", "response_format",
    }  # fmt: skip
    refused_by_name = {"tools"}

    assert {field.name for field in chat_pb2.ChatRequest.DESCRIPTOR.fields} == served | refused_by_name


def test_unset_fields_take_the_models_defaults_and_set_ones_do_not() -> None:
    defaults = Defaults(temperature=0.5, top_k=50, top_p=0.5, min_p=0.25, repetition_penalty=1.25)

    assert asked(defaults).sampling == SamplingParams(
        temperature=0.5, top_k=50, top_p=0.5, min_p=0.25, repetition_penalty=1.25, seed=7
    )
    assert asked(defaults, temperature=0.0, top_k=0).sampling.temperature == 0.0
    assert asked(defaults, temperature=0.0, top_k=0).sampling.top_k == 0


def test_unset_seeds_differ() -> None:
    request = chat_pb2.ChatRequest(messages=[user()])

    assert len({asked_turn(request, Defaults(), VOCABULARY).sampling.seed for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [chat_pb2.Tool(name="f")]}, "tools"),
        ({"messages": [chat_pb2.Message(role=chat_pb2.ROLE_TOOL)]}, "messages[0].role"),
        ({"messages": [user(), user(tool_calls=[chat_pb2.ToolCall()])]}, "messages[1].tool_calls"),
        ({"messages": [user(tool_call_id="c")]}, "messages[0].tool_call_id"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, object], field: str) -> None:
    error = refused(**fields)

    assert error.field == field
    assert "is not served" in error.message


def test_a_field_of_a_newer_proto_is_refused_by_its_number() -> None:
    request = chat_pb2.ChatRequest.FromString(
        chat_pb2.ChatRequest(messages=[user()]).SerializeToString() + b"\xa8\x06\x01"
    )

    with pytest.raises(InvalidRequestError, match="field number 101"):
        asked_turn(request, Defaults(), VOCABULARY)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [chat_pb2.Message(content="x")]}, "messages[0].role"),
        ({"messages": [chat_pb2.Message.FromString(b"\x08\x4d")]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"logit_bias": {1: -101.0}}, "logit_bias"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"session_id": "a\nb"}, "session_id"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, object], field: str) -> None:
    assert refused(**fields).field == field


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_no_number_beyond_reason_passes(name: str, value: float) -> None:
    assert refused(**{name: value}).field == name


# name, a request that uses exactly so much of it
CAPPED: list[tuple[str, int, Callable[[int], dict[str, object]]]] = [
    ("messages", limits.MAX_MESSAGES, lambda n: {"messages": [user("")] * n}),
    ("messages[0].content", limits.MAX_MESSAGE_BYTES, lambda n: {"messages": [user("é" * (n // 2) + "e" * (n % 2))]}),
    ("messages[0].name", limits.MAX_NAME_CHARS, lambda n: {"messages": [user(name="é" * n)]}),
    ("session_id", limits.MAX_SESSION_ID_CHARS, lambda n: {"session_id": "é" * n}),
    ("stop", params.MAX_STOP_STRINGS, lambda n: {"stop": ["x"] * n}),
    ("stop[0]", params.MAX_STOP_STRING_CHARS, lambda n: {"stop": ["é" * n]}),
    ("stop_token_ids", params.MAX_STOP_TOKEN_IDS, lambda n: {"stop_token_ids": [1] * n}),
    ("logit_bias", params.MAX_LOGIT_BIAS, lambda n: {"logit_bias": dict.fromkeys(range(n), 1.0)}),
    ("top_logprobs", params.MAX_TOP_LOGPROBS, lambda n: {"logprobs": True, "top_logprobs": n}),
    (
        "response_format.json_schema",
        params.MAX_JSON_SCHEMA_BYTES,
        lambda n: {"response_format": chat_pb2.ResponseFormat(json_schema="{}".rjust(n))},
    ),
    (
        "response_format.regex",
        params.MAX_REGEX_BYTES,
        lambda n: {"response_format": chat_pb2.ResponseFormat(regex="a" * n)},
    ),
    (
        "response_format.choice.choices",
        params.MAX_CHOICES,
        lambda n: {"response_format": choosing(*map(str, range(n)))},
    ),
    (
        "response_format.choice.choices[0]",
        params.MAX_CHOICE_BYTES,
        lambda n: {"response_format": choosing("b" * n)},
    ),
    ("priority", limits.MAX_PRIORITY, lambda n: {"priority": n}),
]


@pytest.mark.parametrize(("name", "limit", "using"), CAPPED, ids=[row[0] for row in CAPPED])
def test_promise_16_the_limit_passes_and_one_more_is_refused(
    name: str, limit: int, using: Callable[[int], dict[str, object]]
) -> None:
    asked(**using(limit))  # type: ignore[arg-type]

    assert refused(**using(limit + 1)).field == name


def test_promise_16_the_table_of_caps_has_a_row_for_each() -> None:
    rows = {cap.field: cap.limit for cap in limits.CAPS}

    for name, limit, _ in CAPPED:
        assert rows[name.replace("[0]", "[]")] == limit


def test_promise_16_a_whole_request_is_bounded() -> None:
    big = [user("x" * limits.MAX_MESSAGE_BYTES)] * 5

    assert refused(messages=big).field == "request"


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        (chat_pb2.ResponseFormat(json_schema=""), "response_format.json_schema"),
        (chat_pb2.ResponseFormat(regex=""), "response_format.regex"),
        (choosing(), "response_format.choice.choices"),
        (choosing("a", ""), "response_format.choice.choices[1]"),
    ],
)
def test_a_form_that_says_nothing_is_refused(response_format: chat_pb2.ResponseFormat, field: str) -> None:
    assert refused(response_format=response_format).field == field


@pytest.mark.parametrize(
    ("response_format", "form"),
    [
        (chat_pb2.ResponseFormat(), None),
        (chat_pb2.ResponseFormat(text=chat_pb2.TextFormat()), None),
        (chat_pb2.ResponseFormat(json_schema='{"type": "null"}'), AnswerForm.json_schema('{"type": "null"}')),
        (chat_pb2.ResponseFormat(regex="a+"), AnswerForm.regex("a+")),
        (choosing("yes", "no"), AnswerForm.choice(("yes", "no"))),
    ],
)
def test_the_form_of_the_answer_is_told(response_format: chat_pb2.ResponseFormat, form: AnswerForm | None) -> None:
    assert asked(response_format=response_format).form == form


def test_counting_checks_as_chatting_does() -> None:
    assert counted_messages(chat_pb2.CountTokensRequest(messages=[user()])) == (ChatMessage("user", "Hi"),)
    with pytest.raises(InvalidRequestError, match="tools"):
        counted_messages(chat_pb2.CountTokensRequest(messages=[user()], tools=[chat_pb2.Tool()]))


def test_events_keep_everything_on_their_way_out() -> None:
    started = chat_event(Started("r", 10, 4, 0.5, 2**63), "m").started
    assert (started.request_id, started.model, started.prompt_tokens, started.cached_tokens) == ("r", "m", 10, 4)
    assert (started.queue_seconds, started.seed) == (0.5, 2**63)

    delta = chat_event(Delta(3, "é", (5, 6), (Logprobs(TokenLogprob(5, -1.0, b"\xc3"), ()),)), "m").delta
    assert (delta.index, delta.text, list(delta.token_ids)) == (3, "é", [5, 6])
    assert delta.logprobs[0].chosen.bytes == b"\xc3"

    end = Finished(
        FinishReason.STOP, 10, 3, 4, GraphUse(2, {"no_cuda": 1}), 0.5, 0.25, 0.125, 2.0, stop_text=None, stop_token_id=2
    )
    finished = chat_event(end, "m").finished
    assert finished.reason == chat_pb2.FINISH_REASON_STOP
    assert (finished.graph.replays, dict(finished.graph.eager_steps)) == (2, {"no_cuda": 1})
    assert finished.stop.WhichOneof("cause") == "token_id"
    assert finished.timings.decode_seconds == 2.0


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_finish_reason_has_its_value(reason: FinishReason) -> None:
    end = Finished(reason, 1, 1, 0, GraphUse(), 0.0, 0.0, None, 0.0)

    assert chat_pb2.FinishReason.Name(chat_event(end, "m").finished.reason) == f"FINISH_REASON_{reason.name}"


def test_promise_16_the_ids_of_a_resumed_answer_are_bounded() -> None:
    token = make_token(TurnRequest("r", (1,), SamplingParams()), "here", (), 0)
    for count, field in ((limits.MAX_RESUMED_IDS, None), (limits.MAX_RESUMED_IDS + 1, "resume.token_ids")):
        resume = chat_pb2.Resume(resume_token=token, token_ids=[1] * count)
        if field is None:
            turn = asked(resume=resume)
            assert turn.resume is not None
            with pytest.raises(InvalidRequestError, match="at most 10 tokens"):
                turn.resume.of_turn(TurnRequest("r", (1,), SamplingParams()), "here", 10)
        else:
            assert refused(resume=resume).field == field
