"""Answers with a form, through the client, real gRPC and the embedded model."""

from __future__ import annotations

import json

import pytest

from service.client import BadRequestError, ChatClient, Message
from service.client.formats import ResponseFormat, proto_format
from tests.running_server import RunningServer
from tests.schemas import faults

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 99_000_000},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
    },
    "required": ["city", "country", "people", "rivers"],
    "additionalProperties": False,
}
QUESTION = [Message("user", "Describe Paris as JSON.")]


async def test_an_answer_fits_its_schema(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        for wishes in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5}):
            answer = await chat.ask(QUESTION, response_format={"json_schema": CITY}, max_tokens=200, **wishes)  # type: ignore[arg-type]
            assert answer.finished.reason == "stop"
            assert not faults(json.dumps(CITY), answer.text)


async def test_an_answer_is_one_of_its_choices(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        answer = await chat.ask("Is Paris in France?", response_format={"choice": ["yes", "no"]}, temperature=0.0)
    assert answer.text in ("yes", "no")
    assert answer.finished.reason == "stop"


async def test_an_answer_matches_its_expression_and_the_next_is_free(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        year = await chat.ask(
            "When did the French Revolution begin?", response_format={"regex": "1[0-9]{3}"}, session_id="s"
        )
        free = await chat.ask("Say something.", session_id="s", temperature=0.0, max_tokens=12)
        again = await chat.ask("Say something.", temperature=0.0, max_tokens=12)
    assert len(year.text) == 4
    assert year.text.isdigit()
    assert free.text == again.text


@pytest.mark.parametrize(
    ("response_format", "field", "says"),
    [
        ({"json_schema": "{"}, "response_format.json_schema", "no JSON"),
        ({"json_schema": {"uniqueItems": True}}, "response_format.json_schema", "uniqueItems"),
        ({"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}}, "response_format.json_schema", "Unsat"),
        ({"regex": "a(?=b)"}, "response_format.regex", "look-ahead"),
        ({"regex": "["}, "response_format.regex", "unclosed"),
        ({"choice": []}, "response_format.choice.choices", "1 to"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_field(
    real_server: RunningServer, response_format: ResponseFormat, field: str, says: str
) -> None:
    async with ChatClient(real_server.target) as chat:
        with pytest.raises(BadRequestError, match=says) as caught:
            await chat.ask(QUESTION, response_format=response_format)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        ({"json_schema": {"const": {1, 2}}}, "response_format.json_schema"),
        ({"regex": "\udc80"}, "response_format.regex"),
        ({"choice": "yes"}, "response_format.choice"),
        ({"choice": ["a", "\udc80"]}, "response_format.choice.choices[1]"),
        ({"regex": "a", "choice": ["b"]}, "response_format"),
        ({"jsonschema": {}}, "response_format"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_the_client(response_format: ResponseFormat, field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        proto_format(response_format)
    assert caught.value.field == field
