"""Requests with more of anything than servers take: refused by their numbers, before any of it is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.gateway import caps
from service.gateway.asked import asked_chat
from service.gateway.errors import ApiError
from service.gateway.fields import read_json
from service.rpc.limits import CAPS

USER = [{"role": "user", "content": "Hi"}]


class Unread(list[Any]):
    """Very many things. To look at one of them fails."""

    def __len__(self) -> int:
        return 2_000_000

    def __iter__(self) -> Any:
        raise AssertionError("it was looked at")


class UnreadRecord(dict[str, Any]):
    """The same with names."""

    def __len__(self) -> int:
        return 2_000_000

    def items(self) -> Any:
        raise AssertionError("it was looked at")

    __iter__ = values = items


def of_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def test_they_are_those_of_the_servers() -> None:
    server = {cap.field: cap.limit for cap in CAPS}
    assert server["messages"] == caps.MESSAGES
    assert server["stop"] == caps.STOP_STRINGS
    assert server["stop_token_ids"] == caps.STOP_TOKEN_IDS
    assert server["logit_bias"] == caps.LOGIT_BIAS
    assert server["response_format.choice.choices"] == caps.CHOICES
    assert server["response_format.json_schema"] == caps.JSON_SCHEMA_BYTES


@pytest.mark.parametrize(
    ("fields", "param", "most"),
    [
        ({"messages": Unread()}, "messages", "1024 messages"),
        ({"messages": [{"role": "user", "content": Unread()}]}, "messages[0].content", "1024 parts"),
        ({"stop": Unread()}, "stop", "16 texts"),
        ({"stop_token_ids": Unread()}, "stop_token_ids", "32 ids"),
        ({"logit_bias": UnreadRecord()}, "logit_bias", "1024 entries"),
        ({"response_format": {"type": "choice", "choice": Unread()}}, "response_format.choice", "256 texts"),
        (of_schema({"enum": Unread()}), "response_format.json_schema.schema", "65536 bytes"),
        (of_schema({"anyOf": [UnreadRecord()]}), "response_format.json_schema.schema", "65536 bytes"),
        (of_schema({"const": "x" * 70_000}), "response_format.json_schema.schema", "65536 bytes"),
        (of_schema({"a": [[] for _ in range(70_000)]}), "response_format.json_schema.schema", "65536 bytes"),
    ],
)
def test_too_many_are_counted_and_not_read(fields: dict[str, Any], param: str, most: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked_chat({"messages": USER, **fields})
    assert (caught.value.status, caught.value.param) == (400, param)
    assert most in caught.value.message


def test_what_the_servers_take_passes() -> None:
    parts = [{"type": "text", "text": "x"}] * caps.PARTS
    asked = asked_chat(
        {
            "messages": [{"role": "user", "content": parts}, *USER * (caps.MESSAGES - 1)],
            "stop": ["x"] * caps.STOP_STRINGS,
            "stop_token_ids": [1] * caps.STOP_TOKEN_IDS,
            "logit_bias": {str(token_id): 1 for token_id in range(caps.LOGIT_BIAS)},
            **of_schema({"enum": ["x" * 60_000]}),
        }
    )
    assert len(asked.messages) == caps.MESSAGES


def test_what_is_quoted_is_not_written_out_first() -> None:
    class Unwritten:
        def __repr__(self) -> str:
            raise AssertionError("it was written out")

    for body in (
        {"messages": USER, "response_format": {"type": [Unwritten()]}},
        {"messages": [{"role": "user", "content": [{"type": [Unwritten()]}]}]},
    ):
        with pytest.raises(ApiError, match="an array"):
            asked_chat(body)


@pytest.mark.parametrize("value", ["1", "[]", "{}", '""', "null", '{"a":1}', "[[]]", "[" * 900 + "]" * 900])
def test_a_body_of_very_many_values_is_not_parsed(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = '{"metadata":[' + ",".join([value] * (4_000_000 // len(value))) + "]}"
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(ApiError, match="100000 values at most"):
        read_json(body.encode())


@pytest.mark.parametrize(
    "text", [",[{" * 100_000, '\\"' * 200_000, "\\\\" * 200_000, '\\\\\\",' * 100_000, "한," * 200_000]
)
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"{text}"}}]}}'
    assert asked_chat(read_json(body.encode())).messages[0].content == json.loads(f'"{text}"')
