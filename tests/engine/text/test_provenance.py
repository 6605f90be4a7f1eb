"""A string that remembers its source is the plain string in every other way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.provenance import Sourced, foreign, joined, own, own_runs

_PARTS = st.lists(st.tuples(st.booleans(), st.text(alphabet="ab <|>\nß\u0130", max_size=6)), max_size=5)


def made(parts: list[tuple[bool, str]]) -> str:
    """A string of own and foreign parts."""
    return joined("", [text if mine else foreign(text) for mine, text in parts])


def foreign_characters(text: str) -> list[bool]:
    return [not mine for mine, run in own_runs(text) for _ in run]


_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("strip", ()),
    ("strip", ("<a",)),
    ("lstrip", ()),
    ("rstrip", ("\n ",)),
    ("split", ()),
    ("split", (None, 1)),
    ("split", ("a",)),
    ("split", (" ", 2)),
    ("rsplit", ()),
    ("rsplit", (None, 1)),
    ("rsplit", ("a", 1)),
    ("splitlines", ()),
    ("splitlines", (True,)),
    ("partition", ("a",)),
    ("rpartition", ("a",)),
    ("replace", ("a", "xyz")),
    ("replace", ("a", "", 1)),
    ("replace", ("", "-")),
    ("removeprefix", ("a",)),
    ("removesuffix", ("b",)),
    ("upper", ()),
    ("lower", ()),
    ("join", (["x", "y"],)),
    ("__add__", ("x",)),
    ("__mul__", (3,)),
    ("__getitem__", (slice(1, 4),)),
    ("__getitem__", (slice(None, None, -1),)),
]


@pytest.mark.parametrize(("method", "args"), _CALLS)
@given(parts=_PARTS)
def test_every_method_gives_what_str_gives(method: str, args: tuple[Any, ...], parts: list[tuple[bool, str]]) -> None:
    plain = "".join(text for _, text in parts)
    result = getattr(own(made(parts)), method)(*args)
    assert result == getattr(plain, method)(*args)
    for text in [result] if isinstance(result, str) else result:
        assert isinstance(text, Sourced)
        assert len(text._flags) == len(text)


@given(parts=_PARTS)
def test_cuts_keep_the_source_of_each_character(parts: list[tuple[bool, str]]) -> None:
    text = made(parts)
    flags = foreign_characters(text)
    for start in range(len(text)):
        assert foreign_characters(text[start:]) == flags[start:]
    pieces = [piece for line in own(text).splitlines(keepends=True) for piece in line.partition("a")]
    assert [flag for piece in pieces for flag in foreign_characters(piece)] == flags
    assert [flag for character in own(text) for flag in foreign_characters(character)] == flags


def test_concatenation_keeps_both_sources() -> None:
    text = "<" + foreign("user") + ">"
    assert list(own_runs(text)) == [(True, "<"), (False, "user"), (True, ">")]


def test_replacing_brings_the_source_of_what_is_brought() -> None:
    assert list(own_runs(own("<x>").replace("x", foreign("y")))) == [(True, "<"), (False, "y"), (True, ">")]


@pytest.mark.parametrize(
    "text",
    [
        foreign("a%s") % "<b>",
        "<%s>" % foreign("b"),  # noqa: UP031  the operator is what is tested
        foreign("ß").upper(),
        f"{foreign('x')}",
        repr(foreign("x")),
        foreign("ab").replace("", "-"),
    ],
)
def test_what_is_not_followed_is_foreign_as_a_whole(text: str) -> None:
    assert all(foreign_characters(text))
