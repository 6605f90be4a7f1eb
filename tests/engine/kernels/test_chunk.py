"""The prefill kernels against plain torch, over odd sizes and padded chunks."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.chunk import ChunkPlace, ChunkScratch, add_norm, attend, rotate_and_write, splits_of, swiglu
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear
from engine.kernels.plain import head_norm, rotate

SLOTS, CONTEXT = 3, 300


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> bool:
    error = (got.double() - want.double()).norm() / want.double().norm()
    return bool(torch.isfinite(got).all()) and float(error) < tolerance


@pytest.mark.parametrize("k", [64, 576, 1000])
def test_add_norm(device: torch.device, k: int) -> None:
    x = torch.randn(5, k, device=device)
    delta = torch.randn(5, k, device=device)
    out = torch.full((5, k), float("nan"), device=device)
    total = x + delta
    add_norm(x, delta, 1e-5, out)
    assert torch.equal(x, total)
    assert close(out, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5), 1e-6)
    add_norm(x, None, 1e-5, out)
    assert torch.equal(x, total)


@pytest.mark.parametrize("f", [96, 1536, 1100])
def test_swiglu(device: torch.device, f: int) -> None:
    gate_up = torch.randn(3, 2 * f, device=device)
    out = torch.full((3, f), float("nan"), device=device)
    swiglu(gate_up, out)
    assert close(out, torch.nn.functional.silu(gate_up[:, :f]) * gate_up[:, f:], 1e-6)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "norm"),
    [(4, 2, 16, False), (9, 3, 64, False), (8, 8, 80, True), (6, 1, 96, True), (5, 5, 32, False)],
)
@pytest.mark.parametrize(("rows", "count", "start"), [(16, 1, 0), (16, 16, 200), (32, 21, 77), (130, 130, 150)])
def test_a_chunk_attends_like_plain_torch(
    device: torch.device, heads: int, kv_heads: int, d: int, norm: bool, rows: int, count: int, start: int
) -> None:
    if device.type == "cpu" and (rows > 32 or heads > 6):
        pytest.skip("minutes in the interpreter; runs on a GPU")
    generator = torch.Generator().manual_seed(heads + rows)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    nothing = Linear(torch.empty(0))
    q_norm, k_norm = (1 + 0.1 * drawn(d), 1 + 0.1 * drawn(d)) if norm else (None, None)
    layer = LayerWeights(nothing, q_norm, k_norm, nothing, nothing, nothing)
    angles = drawn(CONTEXT, d // 2)
    weights = DecoderWeights(nothing.weight, (), None, nothing.weight, angles.cos(), angles.sin())
    cache = LayerCache(drawn(SLOTS, kv_heads, CONTEXT, d), drawn(SLOTS, kv_heads, CONTEXT, d))
    # What lies beyond the context must not be read.
    cache.k[:, :, start:] = float("nan")
    cache.v[:, :, start:] = float("nan")
    before = (cache.k.clone(), cache.v.clone())
    qkv = drawn(rows, (heads + 2 * kv_heads) * d)
    place = ChunkPlace(*(torch.tensor([value], device=device) for value in (2, start, count)))
    q, k, v = qkv[:count].view(count, -1, d).split((heads, kv_heads, kv_heads), dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = head_norm(q, layer.q_norm, 1e-6), head_norm(k, layer.k_norm, 1e-6)
    end = start + count
    cos, sin = weights.rope_cos[start:end], weights.rope_sin[start:end]
    keys = torch.cat((cache.k[2, :, :start], rotate(k, cos, sin).transpose(0, 1)), dim=1)
    values = torch.cat((cache.v[2, :, :start], v.transpose(0, 1)), dim=1)
    group = heads // kv_heads
    scores = rotate(q, cos, sin).transpose(0, 1) @ keys.repeat_interleave(group, 0).transpose(1, 2) * d**-0.5
    late = torch.ones(count, end, dtype=torch.bool, device=device).triu(start + 1)
    shares = torch.softmax(scores.masked_fill(late, float("-inf")), dim=-1)
    want = (shares @ values.repeat_interleave(group, 0)).transpose(0, 1).reshape(count, -1)

    rotate_and_write(qkv, layer, weights, cache, place, 1e-6)
    out = torch.full((rows, heads * d), float("nan"), device=device)
    attend(qkv, cache, place, out, ChunkScratch.allocate(rows, heads, kv_heads, d, device))
    assert close(cache.k[2, :, :end], keys, 1e-5)
    assert close(cache.v[2, :, :end], values, 1e-6)
    assert close(out[:count], want, 1e-5)
    assert not out[count:].any(), "padding rows are zeros, whatever they held"
    for tensor, old in zip((cache.k, cache.v), before, strict=True):
        assert torch.equal(tensor[:2].nan_to_num(), old[:2].nan_to_num()), "other slots are left alone"
        assert tensor[2, :, end:].isnan().all(), "nothing is written beyond the chunk"


def test_short_chunks_are_split_and_long_ones_are_not() -> None:
    assert splits_of(32, 32, 8) == 32
    assert splits_of(2048, 32, 8) == 1
    assert splits_of(16, 9, 3) == 32
