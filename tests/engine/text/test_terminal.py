"""No character of the model's is a command to the terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.terminal import TerminalText

_HOSTILE = [
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "\x1b]52;c;cm0gLXJm\x1b\\",
    "\x9b31m",
    "\x90q\x9c",
    "\x1bP+q544e\x1b\\",
    "\x08\x08\x08safe",
    "\rover",
    "\x0e\x0f",
    "a\u202eb\u2066c",
    "\u200f\u061c",
    "\x00\x7f\x85",
]


def cleaned(*parts: str) -> str:
    terminal = TerminalText()
    return "".join(map(terminal.push, parts)) + terminal.finish()


@pytest.mark.parametrize("text", _HOSTILE)
def test_promise_19_no_control_character_reaches_the_terminal(text: str) -> None:
    for parts in ([text], list(text)):
        shown = cleaned(*parts)
        assert all(unicodedata.category(character) not in ("Cc", "Cs") for character in shown)
        assert all(
            unicodedata.bidirectional(character) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
            for character in shown
        )


@given(parts=st.lists(st.text(alphabet=st.characters() | st.characters(max_codepoint=0xA0), max_size=8)))
def test_promise_19_any_text_however_it_is_split(parts: list[str]) -> None:
    shown = cleaned(*parts)
    assert shown == cleaned("".join(parts))
    assert all(unicodedata.category(character) not in ("Cc", "Cs") or character in "\n\t" for character in shown)
    shown.encode("utf-8")


def test_an_escape_becomes_a_picture_and_nothing_is_lost() -> None:
    assert cleaned("a\x1b", "[31mred") == "a␛[31mred"


_FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "한국어 日本語 العربية", _FAMILY, "e\u0301"])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert cleaned(text) == text


def test_windows_line_ends_are_line_ends() -> None:
    assert cleaned("a\r", "\nb") == "a\nb"
