"""Dequantisation, against the reference package of the format."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.checkpoint.blocks import DEQUANTISERS
from engine.checkpoint.gguf_header import BLOCK_TYPES

BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


def test_every_block_type_has_a_dequantiser() -> None:
    assert {name for name, block in BLOCKS.items() if block.items > 1} == set(DEQUANTISERS)


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_sizes_are_those_of_the_format(number: int) -> None:
    block = BLOCK_TYPES[number]
    kind = gguf.GGMLQuantizationType(number)
    assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (block.name, (block.items, block.stored_bytes))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", DEQUANTISERS)
def test_any_bytes_give_the_reference_values_exactly(name: str) -> None:
    raw = np.random.default_rng(7).integers(0, 256, (2048, BLOCKS[name].stored_bytes), dtype=np.uint8)
    reference = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    ours = DEQUANTISERS[name](torch.from_numpy(raw)).numpy()
    assert ours.dtype == np.float32
    # Random scales hold NaN too; every other value must agree to the last bit.
    np.testing.assert_array_equal(ours, reference)
    finite = np.isfinite(reference)
    assert finite.mean() > 0.9
    assert np.array_equal(ours[finite].view(np.uint32), reference[finite].view(np.uint32))
