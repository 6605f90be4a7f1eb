"""What graphs are captured for: decode steps by context bucket and sampler stages, known ids and prefill by rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.sampler import Stages

_SMALLEST_BUCKET = 256
_SMALLEST_CHUNK = 16


class Shape(Protocol):
    """Hashable; equal shapes are the same graph."""

    @property
    def name(self) -> str:
        """What metrics, logs and events call it."""

    @property
    def order(self) -> tuple[int | str, ...]:
        """Sorts the largest first."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """A decode step: contexts up to `bucket` tokens, `rows` rows, sampler `stages`."""

    bucket: int
    rows: int
    stages: Stages

    @property
    def name(self) -> str:
        """See Shape."""
        return f"b{self.bucket}_r{self.rows}_{self.stages}"

    @property
    def order(self) -> tuple[int | str, ...]:
        """See Shape."""
        return (1, -self.bucket, -self.rows, self.stages)


@dataclass(frozen=True, slots=True)
class KnownShape:
    """A step of `rows` known ids, contexts up to `bucket` tokens."""

    bucket: int
    rows: int

    @property
    def name(self) -> str:
        """See Shape."""
        return f"b{self.bucket}_r{self.rows}_known"

    @property
    def order(self) -> tuple[int | str, ...]:
        """See Shape."""
        return (1, -self.bucket, -self.rows, "known")


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """A prefill chunk of `rows` rows, of which any number may be padding."""

    rows: int

    @property
    def name(self) -> str:
        """See Shape."""
        return f"prefill_r{self.rows}"

    @property
    def order(self) -> tuple[int | str, ...]:
        """See Shape."""
        return (0, -self.rows)


def buckets(context: int) -> tuple[int, ...]:
    """Context lengths of decode steps: powers of two from 256, and `context` itself."""
    return _doubling(_SMALLEST_BUCKET, context)


def chunk_shapes(most: int) -> tuple[ChunkShape, ...]:
    """Sizes that prefill chunks are padded to: powers of two from 16, and `most` itself."""
    return tuple(ChunkShape(rows) for rows in _doubling(_SMALLEST_CHUNK, most))


def _doubling(smallest: int, most: int) -> tuple[int, ...]:
    sizes = []
    size = smallest
    while size < most:
        sizes.append(size)
        size *= 2
    return (*sizes, most)
