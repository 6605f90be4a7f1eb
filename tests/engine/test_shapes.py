"""What graphs are captured for; capture itself is in test_gpu_graphs.py."""

from __future__ import annotations

import pytest

from engine.sampler import Stages
from engine.shapes import ChunkShape, Shape, StepShape, buckets, chunk_shapes


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (8192, (256, 512, 1024, 2048, 4096, 8192)),
        (300, (256, 300)),
        (256, (256,)),
        (64, (64,)),
        (1000, (256, 512, 1000)),
    ],
)
def test_buckets_are_powers_of_two_and_the_context_itself(context: int, expected: tuple[int, ...]) -> None:
    assert buckets(context) == expected


def test_chunks_are_padded_to_few_sizes() -> None:
    assert [shape.rows for shape in chunk_shapes(512)] == [16, 32, 64, 128, 256, 512]
    assert [shape.rows for shape in chunk_shapes(100)] == [16, 32, 64, 100]
    assert [shape.rows for shape in chunk_shapes(8)] == [8]


def test_the_largest_shapes_sort_first_and_have_names() -> None:
    shapes: list[Shape] = [
        StepShape(256, 1, Stages.GREEDY),
        ChunkShape(16),
        StepShape(512, 1, Stages.SAMPLED),
        ChunkShape(64),
    ]
    ordered = sorted(shapes, key=lambda shape: shape.order)
    assert [shape.name for shape in ordered] == ["prefill_r64", "prefill_r16", "b512_r1_sampled", "b256_r1_greedy"]
