"""What each token id adds to an answer, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

_SPACE = "\u2581"  # SentencePiece writes a space as this block
_BYTE_TOKEN_CHARS = len("<0x0A>")


class Spelling(Enum):
    """How the vocabulary spells bytes."""

    BYTE_LEVEL = "every byte is one printable character"
    SENTENCEPIECE = "text, with a block for a space and <0xNN> for a lone byte"
    WORDS = "whole words, with a space between two of them"


class Pieces:
    """Bytes of every token id, made on first use.

    Arguments:
        token_text: the vocabulary's spelling of an id, None for an id it does not have.
        vocabulary: number of ids.
        literal: ids whose text is meant as it stands (added tokens), whatever the spelling.
        hidden: ids that add nothing.
        strips_first_space: whether the text begins with a space that is not part of it.
    """

    def __init__(
        self,
        token_text: Callable[[int], str | None],
        vocabulary: int,
        spelling: Spelling,
        *,
        literal: Collection[int],
        hidden: Collection[int],
        strips_first_space: bool,
    ) -> None:
        self.vocabulary = vocabulary
        self.strips_first_space = strips_first_space
        self._token_text = token_text
        self._spelling = spelling
        self._literal = frozenset(literal)
        self._hidden = frozenset(hidden)
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one id; nothing for a hidden id, or one that only pads the model's vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        text = None if token_id in self._hidden or token_id < 0 else self._token_text(token_id)
        if text is None:
            return b""
        if token_id in self._literal:
            return text.encode()
        if self._spelling is Spelling.WORDS:
            return b" " + text.encode()
        if self._spelling is Spelling.SENTENCEPIECE:
            byte = lone_byte(text)
            return text.replace(_SPACE, " ").encode() if byte is None else bytes((byte,))
        alphabet = _byte_alphabet()
        if all(character in alphabet for character in text):
            return bytes(alphabet[character] for character in text)
        return text.encode()


def lone_byte(text: str) -> int | None:
    """The byte that a SentencePiece token `<0xNN>` stands for, None for any other token."""
    if len(text) != _BYTE_TOKEN_CHARS or not (text.startswith("<0x") and text.endswith(">")):
        return None
    try:
        return int(text[3:5], 16)
    except ValueError:
        return None


_alphabet: dict[str, int] = {}


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 characters stand for themselves, other bytes for U+0100 and up, in order."""
    if not _alphabet:
        printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        others = [byte for byte in range(0x100) if byte not in printable]
        _alphabet.update({chr(byte): byte for byte in printable})
        _alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return _alphabet
