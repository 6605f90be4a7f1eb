"""What a client must bring back so that its broken answer can go on: the resume token. Pure, like the events.

A token holds no text and no secret. It says which numerics made the answer, how its sampling was resolved, and how the
keys and values that it began with were made; it knows the prompt and the lists of the request by their digests alone.
A seal guards it against mutilation. Who makes one up gains nothing: what it asks for is checked like any input.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import InvalidRequestError
from engine.history import Made, Segment
from engine.params import SamplingParams
from service.errors import OtherNumericsError
from service.events import TurnRequest

FIELD: Final = "resume.resume_token"
MAX_TOKEN_BYTES: Final = 64 * 1024
_MAX_UNPACKED_BYTES: Final = 1024 * 1024
_VERSION: Final = b"\x01"
_SEAL_BYTES: Final = 8
# The sampling parameters that are single values, by what they may be.
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    entry.name: (int, type(None)) if entry.default is None else (type(entry.default),)
    for entry in dataclasses.fields(SamplingParams)
    if entry.name == "max_tokens" or isinstance(entry.default, bool | int | float)
}


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A token, opened.

    Attributes:
        fingerprint: of the numerics that made the answer.
        prompt: digest of the prompt's ids. lists: digest of stop texts, stop ids, bias and form.
        scalars: the sampling parameters that are single values, as resolved, the seed among them.
        history, read: see engine.history.Resumption.
    """

    fingerprint: str
    prompt: str
    lists: str
    scalars: Mapping[str, bool | int | float | None]
    history: tuple[Segment, ...]
    read: int


def make_token(request: TurnRequest, fingerprint: str, history: Sequence[Segment], read: int) -> bytes:
    """The token of a turn that began on this `history`; empty if that is too long to carry."""
    content = [
        fingerprint,
        _digest(request.prompt_ids),
        _lists_digest(request),
        _scalars(request.sampling),
        [[segment.tokens, 0 if segment.made is Made.DECODE else segment.rows] for segment in history],
        read,
    ]
    unpacked = json.dumps(content, separators=(",", ":")).encode()
    packed = zlib.compress(unpacked)
    token = _VERSION + _seal(packed) + packed
    return token if len(token) <= MAX_TOKEN_BYTES and len(unpacked) <= _MAX_UNPACKED_BYTES else b""


def open_token(token: bytes) -> ResumeToken:
    """Raises InvalidRequestError for anything that `make_token` did not make."""
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidRequestError(FIELD, f"holds at most {MAX_TOKEN_BYTES} bytes; got {len(token)}")
    version, seal, packed = token[:1], token[1 : 1 + _SEAL_BYTES], token[1 + _SEAL_BYTES :]
    if version != _VERSION or seal != _seal(packed):
        raise InvalidRequestError(FIELD, "is no token of this version; send it back byte for byte as it came")
    try:
        return _read(_unpacked(packed))
    except (ValueError, TypeError, zlib.error, RecursionError):
        raise InvalidRequestError(FIELD, "is sealed and makes no sense; send it back as it came") from None


def check_same_turn(token: ResumeToken, request: TurnRequest, fingerprint: str) -> None:
    """Whether `request` asks for the answer that the token is of, on numerics that can go on with it.

    Raises InvalidRequestError with the field that differs, OtherNumericsError where it must be exact and cannot be.
    """
    if token.prompt != _digest(request.prompt_ids):
        raise InvalidRequestError("messages", "are not those of the answer that is resumed; send the same ones")
    if token.lists != _lists_digest(request):
        raise InvalidRequestError(
            FIELD, "is of a request with other stop, stop_token_ids, logit_bias or response_format; send the same ones"
        )
    exact = request.resumption is not None and request.resumption.exact
    if exact and token.fingerprint != fingerprint:
        raise OtherNumericsError(token.fingerprint, fingerprint)


def _read(content: Any) -> ResumeToken:
    fingerprint, prompt, lists, scalars, history, read = content
    sound = (
        all(type(text) is str for text in (fingerprint, prompt, lists))
        and scalars.keys() == _KINDS.keys()
        and all(type(value) in _KINDS[name] for name, value in scalars.items())
        and all(type(number) is int for pair in history for number in pair)
        and type(read) is int
    )
    if not sound:
        raise ValueError
    segments = tuple(
        Segment(Made.PREFILL, tokens, rows) if rows else Segment(Made.DECODE, tokens, 1) for tokens, rows in history
    )
    return ResumeToken(fingerprint, prompt, lists, scalars, segments, read)


def _unpacked(packed: bytes) -> Any:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, _MAX_UNPACKED_BYTES)
    if not unpacker.eof:
        raise ValueError
    return json.loads(data)


def _scalars(sampling: SamplingParams) -> dict[str, bool | int | float | None]:
    values = {name: getattr(sampling, name) for name in _KINDS}
    return {name: float(value) if float in _KINDS[name] else value for name, value in values.items()}


def _lists_digest(request: TurnRequest) -> str:
    """Over everything that is no single value; what is in no order is put in one."""
    sampling = request.sampling
    lists: list[object] = [request.stop]
    for entry in dataclasses.fields(sampling):
        value = getattr(sampling, entry.name)
        if isinstance(value, Mapping):
            value = sorted(value.items())
        if entry.name not in _KINDS:
            lists.append((entry.name, value))
    return _digest(lists)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _seal(packed: bytes) -> bytes:
    return hashlib.sha256(_VERSION + packed).digest()[:_SEAL_BYTES]
