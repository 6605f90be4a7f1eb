"""What a chat template may use: the filters and tests that published templates use, and the usual extra functions."""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from engine.text.budget import MAX_PADDING, BoundsError, current, has_foreign
from engine.text.provenance import Sourced, foreign, joined, own

# These give back what they were given, or a number: no string is made.
_PASSING = (
    *("length", "count", "first", "last", "list", "map", "select", "reject", "selectattr", "rejectattr", "reverse"),
    *("items", "default", "d", "abs", "int", "float", "round"),
)
# These compare or hash what they were given, all the way down.
_COMPARING = ("sort", "unique", "min", "max", "dictsort")
# These make strings in ways that are not followed character by character.
_MAKING = ("capitalize", "title", "indent", "center", "truncate", "wordcount")
_COMPARING_TESTS = frozenset(
    ("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=", "in")
)
_FORBIDDEN_TESTS = frozenset(("filter", "test", "callable", "escaped"))
_LONG_NUMBER = re.compile(r"\d{5}")
_STRFTIME_WIDTH = re.compile(r"%[-_^#EO]*\d")


class RefusalError(TemplateRuntimeError):
    """The template called `raise_exception`: its own sentence about what is wrong with the messages."""


def stringify(value: Any) -> str:
    """`str(value)` with its source kept: foreign where anything foreign is inside."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float | Undefined):
        return str(value)
    has_foreign(value, current())
    # Text made from a container belongs to no template constant: nothing in it can be a control token.
    text = foreign(str(value))
    current().need_chars(len(text))
    return text


def replaced(text: str, old: Any, new: Any, count: Any = None) -> str:
    """`text.replace(old, new, count)`, its size told before it is made."""
    old, new = stringify(old), stringify(new)
    count = -1 if count is None else count
    current().need_chars(len(text) + (text.count(old) * max(len(new) - len(old), 0)))
    if isinstance(text, Sourced) or isinstance(new, Sourced):
        return own(text).replace(old, new, count)
    return text.replace(old, new, count)


def check_widths(spec: str) -> None:
    """Refuse a format whose width or precision is longer than four digits."""
    if _LONG_NUMBER.search(spec):
        raise BoundsError(f"it formats to more than {MAX_PADDING:,} characters")


def percent(pattern: str, values: Any) -> str:
    """`pattern % values` with bounded widths."""
    check_widths(pattern)
    if "*" in pattern:
        raise SecurityError("it formats with a width taken from its values")
    budget = current()
    is_foreign = has_foreign((pattern, values), budget)
    text = str.__mod__(pattern, values)
    budget.need_chars(len(text))
    return foreign(text) if is_foreign else text


def filters(jinja: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters that exist, made from Jinja's own."""
    made = {name: _metered(jinja[name], deep=False) for name in _PASSING}
    made |= {name: _metered(jinja[name], deep=True) for name in _COMPARING}
    made |= {name: _making(jinja[name]) for name in _MAKING}
    made["join"] = _joining(jinja["map"])
    made |= {
        "tojson": _tojson,
        "string": _text,
        "safe": _text,
        "trim": lambda value, chars=None: _text(value).strip(chars),
        "upper": lambda value: _text(value).upper(),
        "lower": lambda value: _text(value).lower(),
        "replace": lambda value, old, new, count=None: replaced(stringify(value), old, new, count),
        "format": lambda value, *args, **kwargs: percent(stringify(value), kwargs or args),
    }
    made["escape"] = made["e"] = _making(jinja["forceescape"])
    return made


def tests(jinja: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Jinja's tests; those that compare spend for what they compare."""
    return {
        name: _metered(test, deep=name in _COMPARING_TESTS)
        for name, test in jinja.items()
        if name not in _FORBIDDEN_TESTS
    }


def _text(value: Any) -> str:
    text = stringify(value)
    current().need_chars(len(text))
    return text


def _metered(function: Callable[..., Any], *, deep: bool) -> Callable[..., Any]:
    """`function` at a price: of all its arguments where it walks them, of the length of the first where not."""

    @functools.wraps(function)  # keeps the mark by which Jinja passes context or environment
    def metered(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        values = args[1:] if hasattr(function, "jinja_pass_arg") else args
        if deep:
            budget.spend_on((values, kwargs))
        else:
            size = len(values[0]) if values and hasattr(values[0], "__len__") and not isinstance(values[0], type) else 1
            budget.spend(1 + size // 8)
        result = function(*args, **kwargs)
        if isinstance(result, list):
            budget.need_items(len(result))
        return result

    return metered


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which makes a string: priced, its paddings bounded, the result foreign where an argument is."""

    @functools.wraps(function)
    def making(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        values = args[1:] if hasattr(function, "jinja_pass_arg") else args
        for value in (*values, *kwargs.values()):
            if isinstance(value, int) and value > MAX_PADDING:
                raise BoundsError(f"it pads to {value:,} characters; at most {MAX_PADDING:,} are allowed")
        if function.__name__ == "do_indent":
            text, width = stringify(values[0]), (*values[1:2], kwargs.get("width", 4))[0]
            filler = width if isinstance(width, int) else len(width)
            budget.need_chars(len(text) + (1 + text.count("\n")) * filler)
        is_foreign = has_foreign((values, kwargs), budget)
        result = function(*args, **kwargs)
        if not isinstance(result, str):
            return result
        budget.need_chars(len(result))
        text = str.__str__(result)[:]
        return foreign(text) if is_foreign else text

    return making


def _joining(mapped: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `join`, through the filter `map` where it names an attribute."""

    @functools.wraps(mapped)
    def join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> str:
        budget = current()
        items = mapped(context, value, attribute=attribute) if attribute is not None else value
        parts = []
        for item in items:
            budget.spend()
            parts.append(stringify(item))
        separator = stringify(d)
        budget.need_chars(sum(map(len, parts)) + len(separator) * len(parts))
        return joined(separator, parts)

    return join


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the reference's filter writes it: no HTML escapes, letters as they are."""
    if isinstance(indent, int) and indent > 16:
        raise BoundsError("it indents JSON by more than 16 spaces")
    budget = current()
    is_foreign = has_foreign(value, budget)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.need_chars(len(text))
    return foreign(text) if is_foreign else text


def _raise_exception(message: Any) -> None:
    raise RefusalError(str(stringify(message))[:1000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256 or _STRFTIME_WIDTH.search(pattern):
        raise BoundsError("it asks strftime_now for a padded or very long date")
    text = dt.datetime.now().strftime(str.__str__(pattern))  # noqa: DTZ005  local time, as the reference
    return foreign(text) if isinstance(pattern, Sourced) else text


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets {name!r} in a namespace")
        super().__setitem__(name, value)


def _namespace(**values: Any) -> _Namespace:
    made = _Namespace()
    for name, value in values.items():
        made[name] = value
    return made


def _dict(*args: Any, **values: Any) -> dict[Any, Any]:
    current().spend_on((args, values))
    return dict(*args, **values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "namespace": _namespace,
    "dict": _dict,
}
