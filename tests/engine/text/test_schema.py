"""What is served of JSON schemas, and how the rest is refused: by name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequestError
from engine.text.schema import MAX_DEPTH, MAX_MULTIPLE, MAX_NAMES, served_schema


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_the_dialect_is_left_out_and_the_order_kept() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "type": "object"}
    schema["properties"] = {"b": {}, "a": True}  # type: ignore[assignment]
    served = served_schema(json.dumps(schema))
    assert list(served) == ["type", "properties"]
    assert list(served["properties"]) == ["b", "a"]


def test_remarks_are_let_through() -> None:
    schema = {"title": "T", "description": "D", "default": 1, "x-order": 3, "deprecated": True, "type": "integer"}
    assert served_schema(json.dumps(schema))["type"] == "integer"


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "#/properties/a/uniqueItems"),
        ({"anyOf": [{}, {"not": {}}]}, "#/anyOf/1/not"),
        ({"$defs": {"x": {"if": {}}}}, "#/$defs/x/if"),
        ({"items": {"contains": {}}}, "#/items/contains"),
        ({"prefixItems": [{"unevaluatedItems": False}]}, "#/prefixItems/0/unevaluatedItems"),
        ({"patternProperties": {"^a": {"propertyNames": {}}}}, "#/patternProperties/^a/propertyNames"),
        ({"type": "string", "nullable": True}, "#/nullable"),
        ({"typo": 1}, "#/typo"),
        ({"contentEncoding": "base64"}, "#/contentEncoding"),
        ({"x-guidance": {"lenient": True}}, "#/x-guidance"),
        ({"items": {"$id": "urn:y"}}, "#/items/$id"),
        ({"items": [{}]}, "#/items"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"properties": []}, "#/properties"),
        ({"anyOf": {}}, "#/anyOf"),
        ({"anyOf": []}, "#/anyOf"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum"),
        ({"multipleOf": MAX_MULTIPLE + 1}, "#/multipleOf"),
        ({"multipleOf": 10**9}, "#/multipleOf"),
        ({"multipleOf": 1.00001}, "#/multipleOf"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"$ref": "https://example.org/schema"}, "#/$ref"),
        ({"$ref": "#name"}, "#/$ref"),
        ({"minProperties": 2}, "#/minProperties"),
        ({"minProperties": 3, "required": ["a", "b", "a"]}, "#/minProperties"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "#/$schema"),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "#/exclusiveMinimum"),
        ({"allOf": [{}] * 17}, "#/allOf"),
        ({"anyOf": [{"pattern": "a"}] * 129}, "#/anyOf/0/pattern"),
        ({"properties": {f"p{i}": {} for i in range(MAX_NAMES["properties"] + 1)}}, "#/properties"),
        ({"patternProperties": {f"^p{i}_": {} for i in range(17)}}, "#/patternProperties"),
        ({"allOf": [{"exclusiveMaximum": -1}, {"minimum": -1.5}]}, "#/allOf/0/exclusiveMaximum"),
    ],
)
def test_what_is_not_served_is_refused_by_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        served_schema(json.dumps(schema))
    assert caught.value.field == "response_format.json_schema"
    assert caught.value.message.startswith(f"{place}: ")


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 0.01},
        {"multipleOf": 1e-9},
        {"multipleOf": MAX_MULTIPLE},
        {"minProperties": 1},
        {"maxLength": 2.0},
        {"items": {"minItems": 1.0, "maxItems": 1e2}},
        {"exclusiveMinimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0, "maximum": 1.5},
        {"exclusiveMinimum": 0.25, "exclusiveMaximum": 0.5},
        {"minProperties": 2, "required": ["a", "b"]},
        {"enum": [{"not": 1}], "const": {"if": 2}, "default": {"uniqueItems": 1}},
        {"properties": {"not": {"type": "string"}, "uniqueItems": {}}},
        nested(MAX_DEPTH),
    ],
)
def test_what_is_served(schema: dict[str, Any]) -> None:
    served_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ("true", "must be a JSON object"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"minimum": NaN}', "NaN"),
        ('{"minimum": 1e999}', "too large"),
        ('{"minimum": 9223372036854775808}', "64 bits"),
        ('{"const": ' + "9" * 5000 + "}", "64 bits"),
        ('{"items": ' * 50_000, "deeper"),
        (json.dumps(nested(MAX_DEPTH + 1)), "deeper"),
    ],
)
def test_text_that_is_no_schema(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        served_schema(text)
    assert caught.value.field == "response_format.json_schema"
