"""Text to token ids and back, so that text never becomes a control token.

Every control token of the model is given a new name inside the `tokenizers` object: a sentinel drawn at random when the
tokenizer is built. The model's own spelling (`<|im_start|>`) is then ordinary text to it, whoever wrote it, and merges
cannot build the token because no such entry is in the vocabulary. Only `mark`, which the chat template's own text goes
through, puts sentinels into a string. One call then tokenises the whole prompt, with the library's own rules about what
surrounds a control token, so that ids equal the reference's wherever nobody tried to inject anything.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers

from engine.errors import InvalidRequestError
from engine.text.pieces import Pieces

# A text of fewer characters than this for each place of the context is tokenised without a look at how long it is.
_CHARS_A_PLACE = 8
_PIECE_CHARS = 1 << 14
_CUT_CHARS = 1 << 10  # at the end of a piece, in which a space is looked for


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that text must never become. `hidden` ones are not shown in answers either.

    `strips_left` and `strips_right` swallow the white space beside the token, as the model's authors set it.
    """

    token_id: int
    text: str
    hidden: bool
    strips_left: bool = False
    strips_right: bool = False
    normalized: bool = False


class Sentinels:
    """The names that control tokens go by inside one tokenizer: unguessable, and the same length of life."""

    def __init__(self) -> None:
        # U+F8FF is private use: no normaliser changes it and no pre-tokenizer expression is about it.
        self.nonce = "\uf8ff" + secrets.token_hex(16)

    def name(self, token_id: int) -> str:
        """The sentinel of one control token."""
        return f"{self.nonce}.{token_id}\uf8ff"


class Tokenizer:
    """A tokenizer of one model.

    Attributes:
        vocabulary: number of ids, the largest plus one.
        control_ids: ids that `encode` never gives.
        bos_id: id of the beginning-of-sequence token, None where the model has none.
        add_bos: whether a prompt must begin with it even where the template does not write it.
        special_text: what templates may name: `bos_token`, `eos_token`, `unk_token`, `pad_token`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        pieces: Pieces,
        controls: Iterable[ControlToken],
        sentinels: Sentinels,
        *,
        bos_id: int | None,
        add_bos: bool,
        special_text: Mapping[str, str],
    ) -> None:
        self._backend = backend
        self._pieces = pieces
        self._sentinels = sentinels
        controls = tuple(controls)
        self._controls_strip = any(control.strips_left or control.strips_right for control in controls)
        self.vocabulary = pieces.vocabulary
        self.control_ids = frozenset(control.token_id for control in controls)
        self.control_strings = {control.text: control.token_id for control in controls}
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.special_text = dict(special_text)
        # The longest alternative first: where two control strings begin alike, the longer one is meant.
        by_length = sorted(self.control_strings, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, by_length))) if by_length else None

    def encode(self, text: str, field: str = "messages") -> list[int]:
        """Ids of plain text; control strings in it are ordinary text. No BOS is added.

        Raises InvalidRequestError, naming `field`, for text that is not Unicode (unpaired surrogates).
        """
        check_text(text, field)
        if self._sentinels.nonce in text:
            raise InvalidRequestError(field, "holds this server's own marker for control tokens; leave it out")
        return self.encode_marked(text)

    def mark(self, text: str) -> str:
        """`text` with every control string in it replaced by its token's sentinel. For the template's own text only."""
        if self._control_pattern is None:
            return text
        strings = self.control_strings
        return self._control_pattern.sub(lambda found: self._sentinels.name(strings[found.group()]), text)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of text in which sentinels, and nothing else, stand for control tokens."""
        # A batch of one: `encode` would hold the interpreter's lock, and a long prompt with it every other thread.
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def tokens_beyond(self, text: str, room: int) -> int | None:
        """How many tokens the marked `text` has at least, where it surely has more than `room`; None where it may fit.

        Costs no more than to tokenise a text that just fits, however long this one is. A text of so many bytes that the
        longest tokens would not do is told at once. Of others pieces are tokenised until they come to a quarter more
        than the room: beside a cut there may be other tokens than in the whole, which is a few, and what is not surely
        too long is for `encode_marked` to tell.
        """
        if len(text) <= room * _CHARS_A_PLACE:
            return None
        if self._bytes_count:
            longest, vanishing = self._longest_token
            if (size := len(text.encode().translate(None, vanishing))) > room * longest:
                return -(-size // longest)
        found = place = 0
        while place < len(text):
            end = min(place + _PIECE_CHARS, len(text))
            if end < len(text) and (space := text.rfind(" ", end - _CUT_CHARS, end)) > place:
                end = space  # most tokenizers cut here too
            found += len(self.encode_marked(text[place:end]))
            if found * 4 > room * 5:
                return found * 4 // 5
            place = end
        return None

    @property
    def _bytes_count(self) -> bool:
        """Whether text goes into tokens byte for byte, and no normaliser or control token makes it shorter before."""
        return self._backend.normalizer is None and not self._controls_strip

    @cached_property
    def _longest_token(self) -> tuple[int, bytes]:
        """How many bytes of marked text one id stands for at most, and the bytes that the vocabulary knows no id for:
        they vanish. Made when first asked for: it takes a look at every id.
        """
        pieces = list(map(self._pieces.token_bytes, range(self.vocabulary)))
        known = {piece[0] for piece in pieces if len(piece) == 1}
        names = (self._sentinels.name(token_id).encode() for token_id in self.control_ids)
        return max(map(len, (*pieces, *names)), default=1), bytes(set(range(256)) - known)

    def holds_marker(self, text: str) -> bool:
        """Whether somebody's text holds a sentinel: possible only by a leak, and always refused."""
        return self._sentinels.nonce in text

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, in UTF-8, perhaps a part of a character; nothing for a hidden token."""
        return self._pieces.token_bytes(token_id)

    @property
    def strips_first_space(self) -> bool:
        """Whether a decoded text loses the one space that the tokenizer itself put in front of it."""
        return self._pieces.strips_first_space

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without hidden tokens. Bytes that are no UTF-8 become U+FFFD."""
        data = b"".join(map(self.token_bytes, ids))
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")


def check_text(text: str, field: str) -> None:
    """Raise InvalidRequestError unless `text` can be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            field,
            f"character {error.start} is the unpaired surrogate U+{ord(text[error.start]):04X}, which is what bytes "
            "that are not UTF-8 turn into; send valid Unicode",
        ) from None


def looks_like_markup(text: str) -> bool:
    """Whether an added token is markup (`<tool_call>`, `[INST]`), not ordinary text (a run of spaces, `ø`)."""
    return any(bracket in text for bracket in "<>[]{}|")


def added_token(control: ControlToken, sentinels: Sentinels) -> dict[str, Any]:
    """The entry of `added_tokens` in a `tokenizer.json` under which the library knows a control token."""
    return {
        "id": control.token_id,
        "content": sentinels.name(control.token_id),
        "single_word": False,
        "lstrip": control.strips_left,
        "rstrip": control.strips_right,
        "normalized": control.normalized,
        "special": True,
    }
