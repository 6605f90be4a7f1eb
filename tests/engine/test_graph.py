"""The pool's arithmetic; capture itself is in test_gpu_graphs.py."""

from __future__ import annotations

import pytest

from engine.graph import buckets


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
