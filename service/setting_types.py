"""The kinds of values that a setting can have: text to typed value, with an error that says what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of setting is read and shown.

    Attributes:
        metavar: the placeholder in `--help`.
        parse: text to value; ValueError with what would be right.
        show: value to the text an operator would write.
        many: the text may be a YAML list, too.
        alone: what its flag says without a value; None needs one.
        schema: the same as JSON Schema, for values that are typed before they get here.
    """

    metavar: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    many: bool = False
    alone: str | None = None
    schema: Mapping[str, Any] = field(default_factory=dict)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _flag(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError("must be true or false")


def _listen_address(value: str) -> str:
    host, colon, port = value.strip().rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:50051 or [::1]:50051")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("must have an IPv6 host in brackets, such as [::1]:50051")
    return f"{host}:{int(port)}"


def _cluster_name(value: str) -> str:
    if len(value) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", value):
        raise ValueError("must be a name as Kubernetes has them: lower case, digits, `-` and `.`, at most 253")
    return value


text = Kind("TEXT", _text, schema={"type": "string", "pattern": r"\S"})
flag = Kind("BOOL", _flag, lambda value: "true" if value else "false", alone="true", schema={"type": "boolean"})
listen_address = Kind("HOST:PORT", _listen_address, schema={"type": "string", "pattern": r"^\S+:\d{1,5}$"})
cluster_name = Kind("NAME", _cluster_name, schema={"type": "string", "maxLength": 253})


def choice(*options: str) -> Kind:
    """One of these words."""

    def parse(value: str) -> str:
        if value.strip() not in options:
            raise ValueError(f"must be one of {', '.join(options)}")
        return value.strip()

    return Kind("{" + ",".join(options) + "}", parse, schema={"enum": list(options)})


def choices(*options: str) -> Kind:
    """Some of these words, with commas between them."""

    def parse(value: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in value.split(",") if word.strip())
        if not set(words) <= set(options):
            raise ValueError(f"must be some of {', '.join(options)}, with commas between them")
        return tuple(dict.fromkeys(words))

    schema = {"type": "array", "items": {"enum": list(options)}, "uniqueItems": True}
    return Kind("A,B,...", parse, ",".join, many=True, schema=schema)


def count(low: int, high: int) -> Kind:
    """A whole number in [low, high]."""

    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return number

    return Kind("N", parse, schema={"type": "integer", "minimum": low, "maximum": high})


def seconds(low: float, high: float) -> Kind:
    """A duration in [low, high] seconds."""

    def parse(value: str) -> float:
        try:
            number = float(value.strip())
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number of seconds from {low:g} to {high:g}")
        return number

    schema = {"type": "number", "minimum": low, "maximum": high}
    return Kind("SECONDS", parse, lambda value: f"{value:g}", schema=schema)


def optional(kind: Kind, word: str) -> Kind:
    """`kind`, or None written as `word`, `null` or nothing at all."""

    def parse(value: str) -> Any:
        if value.strip().lower() in (word, "", "null", "~"):
            return None
        try:
            return kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or `{word}`") from None

    schema = {"anyOf": [{"const": word}, kind.schema]}
    return Kind(kind.metavar, parse, lambda value: word if value is None else kind.show(value), schema=schema)
