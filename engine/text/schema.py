"""Which JSON schemas are served. Whatever would not be enforced is refused by its name and place, never passed over.

The grammar library refuses most of what it cannot do, but takes keywords that it does not know for remarks, and lets a
schema switch its strictness off. So every keyword is looked at here first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from engine.errors import InvalidRequestError

MAX_DEPTH = 64  # schemas inside schemas
MAX_MULTIPLE = 1000  # its automaton has a state for every remainder, and making it takes the square of that
# In one object: the library's work grows with the square of them.
MAX_NAMES = {"properties": 1000, "patternProperties": 16, "$defs": 1000, "definitions": 1000}
MAX_ALL_OF = 16  # its schemas are intersected one with the other
MAX_PATTERNS = 128  # in all: they run side by side wherever more than one may match
FIELD = "response_format.json_schema"

_ONE = frozenset(("items", "additionalProperties"))
_LIST = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAP = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_NUMBERS = _BOUNDS | {"multipleOf"}
_REMARKS = frozenset(("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"))
_COUNTS = frozenset(("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"))
_PLAIN = _NUMBERS | _COUNTS | frozenset(("type", "enum", "const", "$ref", "required", "pattern", "format"))
_ROOT_ONLY = frozenset(("$schema", "$id"))
KEYWORDS = _ONE | _LIST | _MAP | _PLAIN | _REMARKS | _ROOT_ONLY
_DIALECTS = ("2020-12/schema", "2019-09/schema", "draft-07/schema", "draft-06/schema")
_INSTEAD = {
    "additionalItems": "; write prefixItems and items",
    "if": "; write anyOf",
    "not": "; say what is allowed",
    "nullable": '; write "type": [..., "null"]',
    "dependencies": "; write anyOf",
    "dependentRequired": "; write anyOf",
}

Schema = Mapping[str, Any] | bool


def served_schema(text: str) -> dict[str, Any]:
    """The schema in JSON text, as the grammar library may have it. Raises InvalidRequestError for one not served."""
    schema = _parsed(text)
    if not isinstance(schema, dict):
        raise _refusal("#", f"must be a JSON object; got {type(schema).__name__}")
    dialect = schema.get("$schema", _DIALECTS[0])
    if not isinstance(dialect, str) or not dialect.rstrip("#").endswith(_DIALECTS):
        raise _refusal("#/$schema", f"{dialect!r} is not served; known: {', '.join(_DIALECTS)}")
    bounds, patterns = _Bounds(), 0
    pending: list[tuple[str, Any, int]] = [("#", schema, 0)]
    while pending:
        place, inner, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _refusal(place, f"lies deeper than {MAX_DEPTH} schemas; move inner ones to $defs")
        if not isinstance(inner, bool):
            bounds.take(place, inner)
            patterns += isinstance(inner, dict) and "pattern" in inner
            if patterns > MAX_PATTERNS:
                raise _refusal(f"{place}/pattern", f"is one of more than {MAX_PATTERNS} patterns")
            pending += ((where, below, depth + 1) for where, below in _inner(place, inner))
    bounds.check()
    # What is served means the same in every dialect served, or is stricter in the newest; references are local.
    return {name: value for name, value in schema.items() if name not in _ROOT_ONLY}


def _inner(place: str, schema: Any) -> Iterable[tuple[str, Any]]:
    """Check the keywords of one schema; the schemas in it, each with its place."""
    if not isinstance(schema, dict):
        raise _refusal(place, f"must be a schema, an object or true or false; got {type(schema).__name__}")
    found: list[tuple[str, Any]] = []
    for keyword, value in schema.items():
        where = f"{place}/{keyword}"
        if keyword.startswith("x-") and keyword != "x-guidance":
            continue  # a vendor's remark
        if keyword not in KEYWORDS or (keyword in _ROOT_ONLY and place != "#"):
            raise _refusal(where, f"this keyword is not served{_INSTEAD.get(keyword, '')}")
        if keyword in _PLAIN:
            _check_plain(where, keyword, value)
        found += _below(where, keyword, value)
    _check_least_properties(place, schema)
    return found


def _below(where: str, keyword: str, value: Any) -> list[tuple[str, Any]]:
    """The schemas under one keyword, each with its place."""
    if keyword in _ONE:
        if isinstance(value, list):
            raise _refusal(where, "must be one schema; for one a place write prefixItems")
        return [(where, value)]
    elif keyword in _LIST:
        if not isinstance(value, list) or not value:
            raise _refusal(where, "must be a list of schemas, not empty")
        if keyword == "allOf" and len(value) > MAX_ALL_OF:
            raise _refusal(where, f"holds at most {MAX_ALL_OF} schemas; got {len(value)}")
        return [(f"{where}/{index}", below) for index, below in enumerate(value)]
    elif keyword in _MAP:
        if not isinstance(value, dict):
            raise _refusal(where, "must be an object of schemas")
        if len(value) > MAX_NAMES[keyword]:
            raise _refusal(where, f"holds at most {MAX_NAMES[keyword]} names; got {len(value)}")
        return [(f"{where}/{name}", below) for name, below in value.items()]
    return []


def _check_plain(where: str, keyword: str, value: Any) -> None:
    if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _refusal(where, f"must be a number; got {value!r}")
    if keyword == "multipleOf":
        digits = Decimal(str(value)).normalize()
        if value <= 0 or digits.scaleb(-min(0, int(digits.as_tuple().exponent))) > MAX_MULTIPLE:
            raise _refusal(where, f"must be above 0 and, without its decimal point, at most {MAX_MULTIPLE}")
    if keyword == "$ref" and not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
        raise _refusal(where, f"must point into this schema, as #/$defs/NAME does; got {value!r}")


def _check_least_properties(place: str, schema: Mapping[str, Any]) -> None:
    """Names that are not listed may come twice, and the second takes the first's place: they cannot be counted."""
    least = schema.get("minProperties", 0)
    required = schema.get("required", ())
    names = len({name for name in required if isinstance(name, str)}) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, names):
        raise _refusal(
            f"{place}/minProperties", "above 1 is served up to the number of required names; list them in required"
        )


class _Bounds:
    """Open bounds at whole numbers, and fractions less than 1 inside: the library then lets the bound in.

    Bounds meet through allOf and $ref too, so all of a schema are looked at together.
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, float, int]] = []  # place, bound, and in which direction numbers are allowed
        self._fractions: list[float] = []

    def take(self, place: str, schema: Any) -> None:
        for keyword in _BOUNDS & schema.keys() if isinstance(schema, dict) else ():
            bound = schema[keyword]
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue  # refused by its keyword
            if bound % 1:
                self._fractions.append(bound)
            elif keyword.startswith("exclusive"):
                self._open.append((f"{place}/{keyword}", bound, 1 if keyword == "exclusiveMinimum" else -1))

    def check(self) -> None:
        for place, bound, direction in self._open:
            for fraction in self._fractions:
                if 0 < direction * (fraction - bound) < 1:
                    raise _refusal(
                        place,
                        f"an open bound at {bound} beside a bound at {fraction} is not served; write a closed one",
                    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_number, parse_int=_served_integer
        )
    except InvalidRequestError:
        raise
    except RecursionError:
        raise _refusal("#", f"lies deeper than {MAX_DEPTH} schemas; move inner ones to $defs") from None
    except ValueError as error:
        raise InvalidRequestError(FIELD, f"is no JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # 2.0 is a whole number in JSON Schema, and the library wants it written as one.
    made = {name: _whole(value) if name in _COUNTS else value for name, value in pairs}
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(FIELD, f"names {twice!r} twice in one object")
    return made


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidRequestError(FIELD, f"holds the number {text[:40]}, which is too large")
    return number


def _served_integer(text: str) -> int:
    if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
        raise InvalidRequestError(FIELD, f"holds the number {text[:40]}, which does not fit into 64 bits")
    return int(text)


def _no_number(text: str) -> float:
    raise InvalidRequestError(FIELD, f"holds {text}, which is no JSON")


def _refusal(place: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(FIELD, f"{place}: {message}")
