"""How keys and values came about. Their bits depend on it, so whoever wants the same bits again must repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Made(StrEnum):
    """How keys and values came about."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Segment:
    """`tokens` consecutive positions made in one way.

    A prefill chunk was computed with `rows` rows, of which the first `tokens` are kept; a decoded segment has one row a
    step.
    """

    made: Made
    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """How an answer that was broken off goes on.

    Attributes:
        emitted: ids of the answer so far, in order, without an end token.
        exact: repeat how keys and values were made, and go on with the same words. Else prompt and `emitted` are read
            like a new prompt, which is quicker and may go on with other words.
        history: how those keys and values were made that the broken turn found in its context, a prefix of the
            prompt's. Used where `exact`.
        read: how many of `emitted` that turn had read in chunks, being itself resumed without `exact`.
    """

    emitted: tuple[int, ...]
    exact: bool = True
    history: tuple[Segment, ...] = ()
    read: int = 0


def covered(segments: Sequence[Segment]) -> int:
    """Positions that `segments` make."""
    return sum(segment.tokens for segment in segments)


def cut(segments: Sequence[Segment], tokens: int) -> list[Segment]:
    """How the first `tokens` positions were made."""
    kept: list[Segment] = []
    for segment in segments:
        length = min(segment.tokens, tokens)
        if length:
            kept.append(Segment(segment.made, length, segment.rows))
        tokens -= length
    return kept


def chunks(start: int, end: int, size: int) -> list[Segment]:
    """Positions start .. end - 1, prefilled `size` at a time."""
    return [Segment(Made.PREFILL, rows, rows) for rows in (min(size, end - at) for at in range(start, end, size))]


def placed(segments: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
    """Each segment with the position that it starts at."""
    start = 0
    for segment in segments:
        yield start, segment
        start += segment.tokens


def reusable(held: Sequence[Segment], wanted: Sequence[Segment], tokens: int) -> int:
    """How many of the first `tokens` positions of `held` were made as `wanted` says, and let the rest be made so too.

    A chunk that is held in part only has to be computed again whole.
    """
    same = min(tokens, _made_alike(held, wanted))
    for start, segment in placed(wanted):
        if segment.made is Made.PREFILL and start < same < start + segment.tokens:
            return start
    return same


def _made_alike(held: Sequence[Segment], wanted: Sequence[Segment]) -> int:
    """The first position that was made in another way, or that only one of the two has."""
    ours, theirs = list(placed(held)), list(placed(wanted))
    at = 0
    while ours and theirs:
        (start, segment), (other_start, other) = ours[0], theirs[0]
        same_chunk = start == other_start and segment.rows == other.rows
        if segment.made is not other.made or (segment.made is Made.PREFILL and not same_chunk):
            break
        ends = start + segment.tokens, other_start + other.tokens
        at = min(ends)
        if ends[0] == at:
            del ours[0]
        if ends[1] == at:
            del theirs[0]
    return at
