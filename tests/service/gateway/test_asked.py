"""Every field of a request: what it becomes, or why it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from service.client import Message
from service.gateway.asked import CHAT_FIELDS, COMPLETION_FIELDS, asked_chat, asked_completion
from service.gateway.errors import ApiError
from service.gateway.fields import Use, read_json

USER = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> Any:
    return asked_chat({"messages": USER, **fields})


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    ("field", "given", "becomes"),
    [
        ("temperature", 0.5, 0.5),
        ("temperature", 1, 1.0),
        ("top_p", 0.9, 0.9),
        ("stop", "END", ["END"]),
        ("stop", ["a", "b"], ["a", "b"]),
        ("seed", 7, 7),
        ("seed", -1, 2**64 - 1),
        ("logit_bias", {"17": -100, "2": 0.5}, {17: -100.0, 2: 0.5}),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 0.1, 0.1),
        ("top_k", 40, 40),
        ("min_p", 0.05, 0.05),
        ("repetition_penalty", 1.1, 1.1),
        ("stop_token_ids", [2, 3], [2, 3]),
        ("session_id", "s", "s"),
        ("priority", -5, -5),
    ],
)
def test_a_field_of_the_turn(field: str, given: object, becomes: object) -> None:
    assert chat(**{field: given}).sampling == {field: becomes}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_reach_the_server_and_errors_come_back_under_the_one_that_was_used(name: str) -> None:
    asked = chat(**{name: 5})
    assert asked.sampling == {"max_tokens": 5}
    assert asked.renamed == {"max_tokens": name}
    assert refusal(max_tokens=1, max_completion_tokens=2).param == "max_tokens"


def test_logprobs() -> None:
    assert chat(logprobs=True).sampling == {"logprobs": True, "top_logprobs": 0}
    assert chat(logprobs=True, top_logprobs=3).sampling == {"logprobs": True, "top_logprobs": 3}
    assert chat(logprobs=False).sampling == {}
    assert refusal(top_logprobs=3).param == "top_logprobs"


@pytest.mark.parametrize(
    ("form", "becomes"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_schema": {"type": "object"}}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "integer"}}},
            {"json_schema": {"type": "integer"}},
        ),
        ({"type": "regex", "regex": "a+"}, {"regex": "a+"}),
        ({"type": "choice", "choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
    ],
)
def test_forms_of_an_answer(form: dict[str, Any], becomes: object) -> None:
    assert chat(response_format=form).sampling.get("response_format") == becomes


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"shema": {}}}, "response_format.json_schema.shema"),
        ({"type": "json_object", "schema": {}}, "response_format.schema"),
        ({"type": "regex"}, "response_format.regex"),
    ],
)
def test_forms_that_are_refused(form: dict[str, Any], param: str) -> None:
    assert refusal(response_format=form).param == param


def test_messages_of_every_role_and_text_parts() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    asked = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts, "name": "ada"},
            # As OpenAI's client writes an answer back, with the fields that are null.
            {
                "role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None, "audio": None,
                "function_call": None, "annotations": [], "parsed": {"a": 1},
            },
            {"role": "user", "content": "And now?"},
        ]
    )  # fmt: skip
    assert asked.messages == (
        Message("system", "Be brief."),
        Message("user", "one two", "ada"),
        Message("assistant", "Hi"),
        Message("user", "And now?"),
    )


@pytest.mark.parametrize(
    ("message", "param", "hint"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages[0].role", "messages of role `tool` out"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls", "not served"),
        ({"role": "usr", "content": "x"}, "messages[0].role", "did you mean user?"),
        ({"content": "x"}, "messages[0].role", "must be one of"),
        ({"role": "user"}, "messages[0].content", "is missing"),
        ({"role": "user", "content": 3}, "messages[0].content", "a string or an array"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type", "image_url"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type", "input_audio"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "is missing"),
        ({"role": "user", "content": "x", "contnt": "y"}, "messages[0].contnt", "did you mean content?"),
        ("Hi", "messages[0]", "must be an object"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(message: object, param: str, hint: str) -> None:
    error = refusal(messages=[message])
    assert error.param == param
    assert hint in error.message


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("tools", [{"type": "function"}], "tools are not served; leave it out, or send []"),
        ("tool_choice", "required", 'send "none" or "auto"'),
        ("functions", [{"name": "f"}], "not served"),
        ("function_call", {"name": "f"}, "not served"),
        ("n", 2, "send 1"),
        ("n", True, "send 1"),
        ("audio", {"voice": "alloy"}, "only text"),
        ("modalities", ["text", "audio"], 'send ["text"]'),
        ("reasoning_effort", "high", "leave it out"),
        ("verbosity", "low", "leave it out"),
        ("web_search_options", {}, "leave it out"),
        ("store", True, "not stored"),
        ("service_tier", "flex", "one tier"),
        ("temprature", 1, "did you mean temperature?"),
        ("max_token", 1, "did you mean max_tokens?"),
        ("best_of", 2, "is no field of this request"),
        ("temperature", "hot", "must be a number, not a string"),
        ("temperature", True, "must be a number, not true or false"),
        ("temperature", 10**400, "finite"),
        ("top_k", 1.5, "whole number"),
        ("max_tokens", -1, "from 0 to"),
        ("seed", 2**64, "whole number from"),
        ("stop", [1], "must be a string"),
        ("stop", 1, "must be an array"),
        ("logit_bias", {"a": 1}, "token id"),
        ("logit_bias", {"1": "x"}, "must be a number"),
        ("logit_bias", [1], "must be an object"),
        ("stream", "yes", "true or false"),
        ("stream_options", {"include_usage": True}, "needs `stream: true`"),
        ("messages", [], "at least one"),
        ("model", 3, "must be a string"),
    ],
)
def test_what_is_refused_says_where_and_what_would_be_right(field: str, value: object, hint: str) -> None:
    error = refusal(**{field: value})
    assert (error.param or "").startswith(field)
    assert hint in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "u"), ("safety_identifier", "u"), ("metadata", {"a": "b"}), ("prompt_cache_key", "k"),
        ("store", False),
        ("service_tier", "auto"), ("modalities", ["text"]), ("tools", []), ("tool_choice", "none"), ("n", 1),
        ("parallel_tool_calls", True), ("prediction", {"type": "content", "content": "x"}),
        ("reasoning_effort", "none"),
    ],
)  # fmt: skip
def test_fields_without_an_effect_pass(field: str, value: object) -> None:
    assert chat(**{field: value}).sampling == {}


@pytest.mark.parametrize("field", [entry.name for entry in CHAT_FIELDS if entry.name != "messages"])
def test_null_is_as_good_as_left_out(field: str) -> None:
    assert chat(**{field: None}) == chat()


def test_messages_are_needed() -> None:
    with pytest.raises(ApiError, match="messages: is missing"):
        asked_chat({"model": "m"})


def test_stream_options() -> None:
    assert not chat(stream=True).include_usage
    assert chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False}).include_usage
    assert refusal(stream=True, stream_options={"usage": True}).param == "stream_options.usage"


def test_a_completion_is_what_a_user_says() -> None:
    asked = asked_completion({"prompt": "Once", "temperature": 0, "logprobs": 2})
    assert asked.messages == (Message("user", "Once"),)
    assert asked.sampling == {"temperature": 0.0, "max_tokens": 16, "logprobs": True, "top_logprobs": 2}
    assert asked_completion({"prompt": ["Once"], "max_tokens": 3}).sampling == {"max_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": [1, 2]}, "prompt"), ({"prompt": [[1]]}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "best_of": 2}, "best_of"), ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "z"}, "suffix"), ({"prompt": "a", "messages": USER}, "messages"),
    ],
)  # fmt: skip
def test_completions_that_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked_completion(fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
)
def test_bodies_that_are_no_object_of_json(body: bytes) -> None:
    with pytest.raises(ApiError, match="one JSON object"):
        read_json(body)


def test_every_refused_field_is_one_that_openai_has_and_we_have_not() -> None:
    for table in (CHAT_FIELDS, COMPLETION_FIELDS):
        names = [entry.name for entry in table]
        assert len(names) == len(set(names))
        assert {entry.name for entry in table if entry.use is Use.EXTENSION} <= set(names)
