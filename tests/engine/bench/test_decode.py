"""Spans that overlap are time that passed once."""

from __future__ import annotations

import pytest

from engine.bench.decode import StepProfile, added_up, covered


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0.0),
        ([(0.0, 1.0)], 1.0),
        ([(0.0, 1.0), (2.0, 3.0)], 2.0),
        ([(2.0, 3.0), (0.0, 2.5)], 3.0),
        ([(0.0, 4.0), (1.0, 2.0)], 4.0),
    ],
)
def test_covered_is_the_union(spans: list[tuple[float, float]], length: float) -> None:
    assert covered(spans) == length


def test_copies_are_no_kernels_and_overlap_counts_once() -> None:
    work = [
        ("gemv", 0.0, 1.0),
        ("attend", 0.5, 2.0),
        ("Memcpy DtoH (Device -> Pinned)", 2.0, 2.25),
        ("Memset", 4.0, 4.5),
    ]
    assert added_up(work) == StepProfile(kernels=2, copies=2, busy_s=2.75)
