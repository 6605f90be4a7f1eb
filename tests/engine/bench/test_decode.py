"""Spans that overlap are time that passed once."""

from __future__ import annotations

import pytest

from engine.bench.decode import covered


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
