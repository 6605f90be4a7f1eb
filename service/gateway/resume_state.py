"""Where a reader stands in an answer, as the id of an event of the stream.

A browser or a client that lost its connection sends the last id that it saw as `Last-Event-ID`, with the same body, to
any gateway. The id holds the server's resume token, with which the same answer is made again from its first word, and
how much of it the reader has. So nobody keeps anything for readers that may never come back.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from service.gateway.errors import RESUME_HEADER, ApiError

_HEAD: Final = struct.Struct(">BII8s")
_VERSION: Final = 1
_LONGEST_PIECE: Final = 1024  # characters of one token: known vocabularies have a few hundred
LONGEST_TOKEN: Final = 5 * 1024  # bytes; in base64 it fits into the 8 KiB that proxies let a header have


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of an answer its reader has.

    Attributes:
        token: the server's, for the whole answer.
        tokens, chars: of the answer, so far.
        digest: of the text so far.
    """

    token: bytes
    tokens: int
    chars: int
    digest: bytes

    def encoded(self) -> str:
        """As the id of an event: one word of ASCII."""
        raw = _HEAD.pack(_VERSION, self.tokens, self.chars, self.digest) + self.token
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def check(self, most_tokens: int) -> None:
        """ApiError where no answer of `most_tokens` has so much: it would play to its end before that showed."""
        if self.tokens > most_tokens or self.chars > self.tokens * _LONGEST_PIECE:
            raise ApiError(
                400,
                f"{RESUME_HEADER}: tells of more than the {most_tokens} tokens that this answer may have; send the "
                "last id as it came, with the same body",
                code="invalid_value",
                param=RESUME_HEADER,
            )


def read_standing(given: str) -> Standing:
    """What `Standing.encoded` made; ApiError for anything else."""
    try:
        raw = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
        version, tokens, chars, digest = _HEAD.unpack_from(raw)
    except (ValueError, binascii.Error, struct.error):
        version, tokens, chars, digest, raw = 0, 0, 0, b"", b""
    if version != _VERSION or len(raw) == _HEAD.size:
        raise ApiError(
            400,
            f"{RESUME_HEADER}: is no event id of this service; send the last one as it came, or leave the header out",
            code="invalid_value",
            param=RESUME_HEADER,
        )
    return Standing(raw[_HEAD.size :], tokens, chars, digest)


class Reading:
    """Follows the text of an answer as it comes. `skip` is what the reader has already."""

    def __init__(self, skip: Standing | None) -> None:
        self._skip = skip
        self._hash = hashlib.sha256()
        self._tokens = 0
        self._chars = 0

    @property
    def caught_up(self) -> bool:
        """Whether all has come again that the reader had."""
        return self._skip is None or (self._chars >= self._skip.chars and self._tokens >= self._skip.tokens)

    @property
    def tokens(self) -> int:
        """That came, the repeated ones included."""
        return self._tokens

    def new(self, text: str, tokens: int) -> tuple[str, int]:
        """What of this piece the reader lacks: its text, and how many of its tokens to leave out.

        Raises:
            ApiError: the answer is not the one that the reader has.
        """
        before_chars, before_tokens = self._chars, self._tokens
        self._chars += len(text)
        self._tokens += tokens
        known = 0 if self._skip is None else min(len(text), max(0, self._skip.chars - before_chars))
        if known and self._skip is not None:
            self._hash.update(text[:known].encode())
            if before_chars + known == self._skip.chars and self._digest() != self._skip.digest:
                raise differs()
        self._hash.update(text[known:].encode())
        left_out = 0 if self._skip is None else min(tokens, max(0, self._skip.tokens - before_tokens))
        return text[known:], left_out

    def event_id(self, token: bytes) -> str | None:
        """Where the reader stands after this piece; None where that is more than a header of a request holds."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        return Standing(token, self._tokens, self._chars, self._digest()).encoded()

    def _digest(self) -> bytes:
        return self._hash.copy().digest()[:8]


def differs() -> ApiError:
    """The answer came out otherwise than the reader has it."""
    return ApiError(
        409,
        f"{RESUME_HEADER}: the answer comes out with other words here; ask anew without this header",
        code="resume_refused",
        param=RESUME_HEADER,
    )
