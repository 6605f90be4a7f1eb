"""How one field of a request is read: JSON to a typed value, or an error with its name and what would be right."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NoReturn

from service.gateway import caps
from service.gateway.errors import ApiError, wrong

_LONGEST_NAME: Final = 64

Read = Callable[[str, Any], Any]


class Use(StrEnum):
    """What becomes of a field."""

    SERVED = "served"
    EXTENSION = "served, not OpenAI's"
    NO_EFFECT = "accepted, has no effect on the answer"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request. `note` is for the reader of the documentation."""

    name: str
    use: Use
    read: Read
    note: str = ""


def read_json(body: bytes) -> dict[str, Any]:
    """The one JSON object of a request's body."""

    def no_number(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number of JSON")

    try:
        text = body.decode("utf-8-sig")
        caps.few_values(text)
        parsed = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        # Python's text gives the place and never the content.
        told = f" ({error})" if isinstance(error, json.JSONDecodeError) else ""
        raise ApiError(400, f"the body must be one JSON object, in UTF-8{told}", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise ApiError(400, f"the body must be one JSON object, not {_kind(parsed)}", code="invalid_json")
    return parsed


def read_fields(given: Mapping[str, Any], table: Collection[Field], place: str = "") -> dict[str, Any]:
    """The values by name. `null` is as good as left out; a name that is in no row is refused, with its nearest."""
    known = {entry.name: entry for entry in table}
    values: dict[str, Any] = {}
    for name, value in given.items():
        path = f"{place}.{name}" if place else name
        if name not in known:
            hint = nearest(name, [entry.name for entry in table if entry.use is not Use.REFUSED])
            raise wrong(path, f"is no field of this request{hint}", "unknown_parameter")
        if value is not None:
            values[name] = known[name].read(path, value)
    return values


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing. A long word is like none of ours, and to compare it would take long."""
    close = difflib.get_close_matches(word, known, n=1) if len(word) <= _LONGEST_NAME else []
    return f"; did you mean {close[0]}?" if close else ""


def text(path: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong(path, f"must be a string, not {_kind(value)}", "invalid_type")
    return value


def flag(path: str, value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise wrong(path, f"must be true or false, not {_kind(value)}", "invalid_type")
    return value


def number(path: str, value: Any) -> float:
    """Any finite number. What it may be in this field, the server says."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, f"must be a number, not {_kind(value)}", "invalid_type")
    try:
        as_float = float(value)
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float) or abs(as_float) > 3e38:  # what a float of the proto holds
        raise wrong(path, "must be a finite number of 32 bits")
    return as_float


def whole(low: int, high: int) -> Read:
    """A whole number in [low, high]."""

    def read(path: str, value: Any) -> int:
        whole_float = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole_float):
            raise wrong(path, f"must be a whole number, not {_kind(value)}", "invalid_type")
        if not low <= value <= high:
            raise wrong(path, f"must be a whole number from {low} to {high}")
        return int(value)

    return read


def items(path: str, value: Any) -> list[Any]:
    """An array."""
    if not isinstance(value, list):
        raise wrong(path, f"must be an array, not {_kind(value)}", "invalid_type")
    return value


def record(path: str, value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise wrong(path, f"must be an object, not {_kind(value)}", "invalid_type")
    return value


def anything(_path: str, value: Any) -> Any:
    """A field that is taken whatever it holds."""
    return value


def only(*neutral: Any, because: str) -> Read:
    """A field that is not served: only values that ask for nothing pass."""

    def read(path: str, value: Any) -> Any:
        if not any(type(value) is type(other) and value == other for other in neutral):
            right = f"; leave it out, or send {' or '.join(map(json.dumps, neutral))}" if neutral else "; leave it out"
            raise wrong(path, f"{because}{right}", "unsupported_parameter")
        return value

    return read


def shown(value: Any) -> str:
    """For an error: a short text as it is, anything else by its kind, which takes no time however large it is."""
    return repr(value[:_LONGEST_NAME]) if isinstance(value, str) else _kind(value)


_KINDS: Final[Mapping[type, str]] = {
    str: "a string", bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "an object",
    type(None): "null",
}  # fmt: skip


def _kind(value: Any) -> str:
    return _KINDS[type(value)]
