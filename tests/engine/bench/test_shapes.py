"""The bytes of a step, against sizes that were published or counted by hand."""

from __future__ import annotations

import pytest

from engine.bench.shapes import SHAPES, cache_bytes, weight_bytes

# Parameters as published, in millions; a tied embedding is counted once.
PUBLISHED_MILLIONS = {
    "llama-2-7b": 6738,
    "llama-3.1-8b": 8030,
    "llama-3.2-1b": 1236,
    "smollm2-135m": 134.5,
    "qwen2.5-7b": 7616,
    "qwen3-0.6b": 596,
}


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_those_of_the_published_model(name: str) -> None:
    shape = SHAPES[name]
    parameters = weight_bytes(shape, 1) + (0 if shape.tied_head else shape.vocabulary * shape.width)
    assert parameters / 1e6 == pytest.approx(PUBLISHED_MILLIONS[name], rel=1e-3)


def test_cache_is_keys_and_values_of_every_layer() -> None:
    assert cache_bytes(SHAPES["llama-3.1-8b"], 2, 4096) == 2 * 32 * 8 * 128 * 2 * 4096
