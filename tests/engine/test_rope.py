"""Rotary tables, against `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.architecture import LinearRope, Llama3Rope, RopeFactors, RopeScaling
from engine.rope import inverse_frequencies, rotary_tables
from tests.checkpoints import LLAMA3_ROPE, Sizes, tiny_architecture, tiny_config

REAL_LLAMA3 = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("rope", [None, LinearRope(4.0), LLAMA3_ROPE, REAL_LLAMA3])
def test_tables_are_the_oracles_to_the_last_bit(rope: RopeScaling | None, head_dim: int, base: float) -> None:
    architecture = tiny_architecture(
        sizes=Sizes(width=4 * head_dim, head_dim=head_dim, vocabulary=320, context=16384), rope=rope, rope_base=base
    )
    config: dict[str, Any] = tiny_config(architecture, torch.float32)
    oracle = LlamaRotaryEmbedding(LlamaConfig(**config))
    cos, sin = oracle(torch.zeros(1), torch.arange(4096)[None])
    our_cos, our_sin = rotary_tables(architecture, 4096)
    assert our_cos.shape == (4096, head_dim // 2)
    assert torch.equal(our_cos, cos[0, :, : head_dim // 2])
    assert torch.equal(our_sin, sin[0, :, : head_dim // 2])


def test_factors_of_a_gguf_file_divide_the_frequencies() -> None:
    plain = inverse_frequencies(tiny_architecture())
    factors = tuple(float(index + 1) for index in range(8))
    stretched = inverse_frequencies(tiny_architecture(rope=RopeFactors(factors)))
    assert torch.equal(stretched, plain / torch.tensor(factors))
