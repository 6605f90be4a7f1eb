"""JSON schemas drawn at random from the features that are served, for answers to be checked against."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal, DecimalException
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]
_WORDS = ("name", "size", "colour", "größe", "tags", "id", "note", "at", "a b", 'q"x', "left", "right")
_PATTERNS = ("^[a-z]{2,5}$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$", "^[0-9]{3}", "^(yes|no)", "^\\d+-[xyz]$", "^.{0,3}b$")
_FORMATS = ("date", "ipv4", "ipv6", "email", "uuid")
_SCALARS = (None, True, False, 0, -7, 2.5, "", "red", "grün", "two words", 'a "quote"', "back\\slash")


class SchemaDraw:
    """One random schema a seed. `$defs` holds what its references point to, one of them to itself."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._defs: dict[str, Schema] = {}

    def schema(self) -> Schema:
        """A whole schema, an object or an array more often than not."""
        kinds = (self._object, self._object, self._array, self._any)
        schema = dict(self._draw.choice(kinds)(3))
        if self._defs:
            schema["$defs"] = self._defs
        if self._draw.random() < 0.3:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Drawn", **schema}
        return schema

    def _any(self, depth: int) -> Schema:
        leaves: tuple[Callable[[int], Schema], ...] = (self._string, self._integer, self._number, self._leaf)
        branches = (self._object, self._array, self._any_of, self._one_of, self._all_of, self._reference)
        kinds = leaves if depth <= 0 else leaves + branches
        return self._draw.choice(kinds)(depth - 1)

    def _leaf(self, _depth: int) -> Schema:
        draw = self._draw
        return draw.choice(
            (
                {"type": "boolean"},
                {"type": "null"},
                {"const": draw.choice(_SCALARS)},
                {"const": {"fixed": [1, "two", None]}},
                {"enum": draw.sample(_SCALARS, draw.randint(1, 5))},
                {"type": draw.sample(["string", "integer", "null", "boolean"], 2)},
                {"type": "string", "enum": ["red", "green", 3]},
            )
        )

    def _string(self, _depth: int) -> Schema:
        draw = self._draw
        schema: Schema = {"type": "string"}
        match draw.randrange(4):
            case 0:
                least = draw.randint(0, 5)
                schema |= draw.choice(
                    (
                        {"minLength": least},
                        {"maxLength": 8},
                        {"minLength": least, "maxLength": least + draw.randint(0, 9)},
                    )
                )
            case 1:
                schema["pattern"] = draw.choice(_PATTERNS)
            case 2:
                schema["format"] = draw.choice(_FORMATS)
        return schema

    def _integer(self, _depth: int) -> Schema:
        draw = self._draw
        low = draw.randint(-1000, 1000)
        schema: Schema = {"type": "integer"}
        match draw.randrange(5):
            case 0:
                schema |= {"minimum": low, "maximum": low + draw.randint(0, 500)}
            case 1:
                schema |= {"exclusiveMinimum": low, "exclusiveMaximum": low + draw.randint(2, 50)}
            case 2:
                schema |= draw.choice(({"minimum": low}, {"maximum": low}))
            case 3:
                schema |= {"multipleOf": draw.choice((2, 7, 25, 100))}
        return schema

    def _number(self, _depth: int) -> Schema:
        draw = self._draw
        low = draw.choice((-3.5, 0, 0.125, 17, -250.75))
        schema: Schema = {"type": "number"}
        match draw.randrange(4):
            case 0:
                schema |= {"minimum": low, "maximum": low + draw.choice((0.5, 1, 1000.25))}
            case 1:
                low = draw.choice((-3.5, 0.125, -250.75, 1050))
                schema |= {"exclusiveMinimum": low, "exclusiveMaximum": low + draw.choice((1, 3, 99))}
            case 2:
                schema |= {"multipleOf": draw.choice((0.25, 0.1, 3))}
        return schema

    def _array(self, depth: int) -> Schema:
        draw = self._draw
        schema: Schema = {"type": "array"}
        least = draw.randint(0, 2)
        if draw.random() < 0.3:
            schema["prefixItems"] = [self._any(depth - 1) for _ in range(draw.randint(1, 3))]
            schema["items"] = draw.choice((False, self._any(depth - 2)))
        else:
            schema["items"] = self._any(depth - 1)
            schema |= draw.choice(
                ({}, {"minItems": least}, {"maxItems": 3}, {"minItems": least, "maxItems": least + 2})
            )
        return schema

    def _object(self, depth: int) -> Schema:
        draw = self._draw
        names = draw.sample(_WORDS, draw.randint(0, 4))
        schema: Schema = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}}
        required = [name for name in names if draw.random() < 0.6]
        if required:
            schema["required"] = required
        match draw.randrange(5):
            case 0 | 1:
                schema["additionalProperties"] = False
            case 2:
                schema["additionalProperties"] = self._any(depth - 2)
            case 3:
                schema |= {"patternProperties": {"^x_[a-z]+$": self._any(depth - 2)}, "additionalProperties": False}
        if not names and draw.random() < 0.5 and schema.get("additionalProperties") is not False:
            schema |= {"minProperties": 1, "maxProperties": 3}
        return schema

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._any(depth - 1) for _ in range(self._draw.randint(2, 3))]}

    def _one_of(self, depth: int) -> Schema:
        kinds = self._draw.sample((self._string, self._integer, self._array, self._object), 2)
        return {"oneOf": [kind(depth - 1) for kind in kinds]}

    def _all_of(self, depth: int) -> Schema:
        left: Schema = {"type": "object", "properties": {"l": self._any(depth - 2)}, "required": ["l"]}
        right: Schema = {"properties": {"r": self._any(depth - 2)}, "required": ["r"]}
        return {"allOf": [left, right]}

    def _reference(self, depth: int) -> Schema:
        name = f"d{self._draw.randint(0, 2)}"
        if name not in self._defs:
            self._defs[name] = {}  # so that it may point to itself
            below = {"$ref": f"#/$defs/{name}"}
            self._defs[name] = self._draw.choice(
                (
                    self._any(depth - 1),
                    {
                        "type": "object",
                        "properties": {"value": self._any(0), "next": {"anyOf": [{"type": "null"}, below]}},
                        "required": ["value"],
                        "additionalProperties": False,
                    },
                )
            )
        return {"$ref": f"#/$defs/{name}"}


def faults(schema: str, answer: str) -> list[str]:
    """What is wrong with an answer: it is no JSON, or does not fit. Numbers are compared as decimals, not as floats."""
    try:
        value = json.loads(answer, parse_float=_exact)
    except ValueError as error:
        return [f"no JSON: {error}"]
    validator = Draft202012Validator(
        json.loads(schema, parse_float=_exact), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [error.message for error in validator.iter_errors(value)]


def _exact(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except DecimalException:
        return float(text)  # an exponent beyond all measure
