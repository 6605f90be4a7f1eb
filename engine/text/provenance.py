"""Strings that remember which of their characters a caller wrote.

A chat template mixes its own text, in which `<|im_start|>` is a control token, with what people wrote, in which it is
not. `Sourced` is a `str` that carries one flag a character through whatever a template does with it: slices, `trim`,
`split`, `replace`, concatenation. To the template it is the plain string, character for character.

The rule is that doubt counts against the text: an operation that is not followed character by character gives a string
that is foreign as a whole (`foreign`). A template can thereby lose a control token of its own, never let one in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

_OWN, _FOREIGN = b"\x00", b"\x01"


class Sourced(str):
    """A string whose `_flags` holds one byte a character: 1 where a caller wrote it, 0 where the template did."""

    __slots__ = ("_flags",)
    _flags: bytes

    def __new__(cls, text: str, flags: bytes) -> Sourced:
        made = super().__new__(cls, text)
        made._flags = flags
        return made

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return foreign(str.__repr__(self))

    def __format__(self, spec: str) -> str:
        return foreign(str.__format__(self, spec))

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return Sourced(str.__add__(self, other), self._flags + flags_of(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return Sourced(str.__add__(other, self), flags_of(other) + self._flags)

    def __mul__(self, count: SupportsIndex) -> str:
        return Sourced(str.__mul__(self, count), self._flags * count.__index__())

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return foreign(str.__mod__(self, values))

    def __rmod__(self, pattern: Any) -> str:
        return foreign(str.__mod__(pattern, self))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        flags = self._flags[key] if isinstance(key, slice) else bytes((self._flags[key],))
        return Sourced(str.__getitem__(self, key), flags)

    def __iter__(self) -> Iterator[str]:
        flags = self._flags
        return (Sourced(character, flags[place : place + 1]) for place, character in enumerate(str.__iter__(self)))

    def strip(self, characters: str | None = None, /) -> str:
        """As `str.strip`."""
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None, /) -> str:
        """As `str.lstrip`."""
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None, /) -> str:
        """As `str.rstrip`."""
        return self[: len(str.rstrip(self, characters))]

    def removeprefix(self, prefix: str, /) -> str:
        """As `str.removeprefix`."""
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> str:
        """As `str.removesuffix`."""
        return self[: len(str.removesuffix(self, suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.split`."""
        return self._located(str.split(self, sep, maxsplit))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.rsplit`."""
        if sep is None:
            return self._located(str.rsplit(self, sep, maxsplit))
        return self._spaced(str.rsplit(self, sep, maxsplit), len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As `str.splitlines`."""
        lines = self._spaced(str.splitlines(self, keepends=True), 0)
        return lines if keepends else [line[: len(str.splitlines(line)[0])] for line in lines]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """As `str.partition`."""
        head, middle, tail = self._spaced(str.partition(self, sep), 0)
        return head, middle, tail

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """As `str.rpartition`."""
        head, middle, tail = self._spaced(str.rpartition(self, sep), 0)
        return head, middle, tail

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """As `str.replace`; what `new` brings keeps its own source."""
        if not old:
            return foreign(str.replace(self, old, new, count))
        return joined(new, self._spaced(str.split(self, old, count), len(old)))

    def join(self, parts: Iterable[str], /) -> str:
        """As `str.join`."""
        return joined(self, parts)

    def upper(self) -> str:
        """As `str.upper`."""
        return self._mapped(str.upper(self))

    def lower(self) -> str:
        """As `str.lower`."""
        return self._mapped(str.lower(self))

    def _mapped(self, text: str) -> str:
        """`text` made from this one character for character, or foreign where the lengths differ (`ß` -> `SS`)."""
        return Sourced(text, self._flags) if len(text) == len(self) else foreign(text)

    def _spaced(self, parts: Iterable[str], gap: int) -> list[str]:
        """This string's own parts again, `gap` characters apart, with their flags."""
        found, place = [], 0
        for part in parts:
            found.append(self[place : place + len(part)])
            place += len(part) + gap
        return found

    def _located(self, parts: list[str]) -> list[str]:
        """As `_spaced`, with gaps of any length that the parts do not begin with."""
        found, place = [], 0
        for part in parts:
            place = str.find(self, part, place)
            found.append(self[place : place + len(part)])
            place += len(part)
        return found


def foreign(text: str) -> str:
    """`text` as a caller's, every character."""
    return Sourced(text, _FOREIGN * len(text))


def own(text: str) -> Sourced:
    """`text` as the template's, unless it knows better."""
    return text if isinstance(text, Sourced) else Sourced(text, _OWN * len(text))


def flags_of(text: str) -> bytes:
    """One byte a character; a plain string is the template's."""
    return text._flags if isinstance(text, Sourced) else _OWN * len(text)


def joined(separator: str, parts: Iterable[str]) -> str:
    """As `separator.join(parts)`; plain where nothing in it is a caller's."""
    parts = list(parts)
    text = str.join(separator, parts)
    if not any(isinstance(part, Sourced) for part in (separator, *parts)):
        return text
    return Sourced(text, flags_of(separator).join(map(flags_of, parts)))


def own_runs(text: str) -> Iterator[tuple[bool, str]]:
    """The longest stretches of one source, in order, as plain strings: (whether it is the template's own, text)."""
    if not isinstance(text, Sourced):
        yield True, text
        return
    flags, place = text._flags, 0
    while place < len(flags):
        mine = flags[place] == 0
        end = flags.find(_FOREIGN if mine else _OWN, place)
        end = len(flags) if end < 0 else end
        yield mine, str.__getitem__(text, slice(place, end)) + ""
        place = end
