"""What a slot holds, and how it was made."""

from __future__ import annotations

import pytest
import torch

from engine.architecture import Architecture
from engine.cache import KVCache, cache_bytes
from engine.errors import StepError
from engine.history import Made, Segment

SHAPE = Architecture("llama", 2, 32, 4, 2, 8, 64, 100, 128, 1e-5, 1e4)


@pytest.fixture
def cache() -> KVCache:
    return KVCache(SHAPE, slots=2, context=16, dtype=torch.float32, device=torch.device("cpu"))


def test_slots_are_lent_and_given_back_once(cache: KVCache) -> None:
    first, second = cache.open_context(), cache.open_context()
    assert {first.slot, second.slot} == {0, 1}
    with pytest.raises(StepError, match="every KV slot is taken"):
        cache.open_context()
    first.close()
    first.close()
    assert cache.free_slots == 1
    assert cache.open_context().slot == first.slot


def test_layers_are_views_of_one_tensor(cache: KVCache) -> None:
    assert len(cache.layers) == SHAPE.layers
    assert cache.layers[1].k.shape == (2, 2, 16, 8)
    assert cache.bytes == cache_bytes(SHAPE, 2, 16, torch.float32)
    assert cache.layers[0].k.untyped_storage().data_ptr() == cache.layers[1].v.untyped_storage().data_ptr()


def test_the_longest_common_prefix_is_shared(cache: KVCache) -> None:
    context = cache.open_context()
    context.append(Made.PREFILL, (5, 6, 7), 3)
    assert context.shared_prefix((5, 6, 9, 9)) == 2
    assert context.shared_prefix((5, 6, 7, 8)) == 3
    assert context.shared_prefix((5,)) == 1
    assert context.shared_prefix((1,)) == 0


def test_history_keeps_how_each_position_was_made(cache: KVCache) -> None:
    context = cache.open_context()
    context.append(Made.PREFILL, (1, 2, 3), 3)
    context.append(Made.DECODE, (4,))
    context.append(Made.DECODE, (5,))
    context.append(Made.PREFILL, (6, 7), 2)
    assert context.segments == [
        Segment(Made.PREFILL, 3, 3),
        Segment(Made.DECODE, 2, 1),
        Segment(Made.PREFILL, 2, 2),
    ]
    context.keep(4)
    assert context.tokens == (1, 2, 3, 4)
    assert context.segments == [Segment(Made.PREFILL, 3, 3), Segment(Made.DECODE, 1, 1)]
    context.keep(2)
    assert context.segments == [Segment(Made.PREFILL, 2, 3)], "a cut chunk remembers how many rows it was computed with"
