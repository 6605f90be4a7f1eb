"""Prefill of a chunk: what stands between its matrix products, as four kernels.

A chunk is P rows of one slot at positions start, start + 1, ...; only the first `count` are real, the others pad the
chunk to the rows that a graph was captured for. `start`, `count` and the slot are device data, `ChunkPlace`.

The attention is a flash attention whose context is cut into splits, as in flash decoding: a short chunk on a long
context would otherwise leave most of the device idle. All query heads of a key head share a block, so keys and values
are read once (Dao, "FlashAttention-2", 2023; "Flash-Decoding for long-context inference", 2023). How a context is cut
depends on its length and P alone.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights

_LOG2_E = 1.4426950408889634
_ROWS_A_BLOCK = 128  # rows times query heads of one key head
_TILE = 64  # positions a block reads at a time
_BLOCKS_WANTED = 256  # about two for each multiprocessor of a large device
_MOST_SPLITS = 32


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk goes: slot, start and count, `[1]` int64 each, on the device."""

    slot: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor

    @classmethod
    def allocate(cls, device: torch.device) -> ChunkPlace:
        """Slot 0, nothing yet."""
        slot, start, count = torch.zeros(3, 1, dtype=torch.int64, device=device).unbind()
        return cls(slot, start, count)


@triton.jit
def _add_norm(x, delta, out, eps, K: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    valid = columns < K
    value = tl.load(x + row * K + columns, mask=valid, other=0.0)
    if ADD:
        value += tl.load(delta + row * K + columns, mask=valid, other=0.0).to(tl.float32)
        tl.store(x + row * K + columns, value, mask=valid)
    value = value * tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
    tl.store(out + row * K + columns, value.to(out.dtype.element_ty), mask=valid)


def add_norm(x: torch.Tensor, delta: torch.Tensor | None, eps: float, out: torch.Tensor) -> None:
    """x `[P, K]` float32 += delta `[P, K]`, where there is one; out `[P, K]` = rms_norm(x)."""
    rows, k = x.shape
    block = triton.next_power_of_2(k)
    warps = min(16, max(1, block // 512))
    _add_norm[(rows,)](
        x, x if delta is None else delta, out, eps, K=k, BLOCK=block, ADD=delta is not None, num_warps=warps
    )


@triton.jit
def _swiglu(gate_up, out, F: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < F
    gate = tl.load(gate_up + row * 2 * F + columns, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + row * F + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=valid)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out `[P, F]` = silu(gate) * up of gate_up `[P, 2 F]`."""
    rows, f = out.shape
    block = 1024
    _swiglu[(rows, triton.cdiv(f, block))](gate_up, out, F=f, BLOCK=block)


@triton.jit
def _rotate_and_write(
    qkv, q_norm, k_norm, cos_table, sin_table, keys, values, slot_at, start_at, count_at, eps, slot_stride, head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, QK_NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    if row >= tl.load(count_at):
        return
    HALF: tl.constexpr = D // 2
    position = tl.load(start_at) + row
    target = tl.load(slot_at) * slot_stride + position * D
    dims = tl.arange(0, DP)
    valid = dims < D
    source = qkv + row * (HEADS + 2 * KV_HEADS) * D + head * D
    value = tl.load(source + dims, mask=valid, other=0.0)
    if head >= HEADS + KV_HEADS:
        tl.store(values + target + (head - HEADS - KV_HEADS) * head_stride + dims, value, mask=valid)
        return
    partner_dims = (dims + HALF) % D
    wide = value.to(tl.float32)
    partner = tl.load(source + partner_dims, mask=valid, other=0.0).to(tl.float32)
    if QK_NORM:
        factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / D + eps)
        weight = q_norm if head < HEADS else k_norm
        wide = wide * factor * tl.load(weight + dims, mask=valid, other=0.0).to(tl.float32)
        partner = partner * factor * tl.load(weight + partner_dims, mask=valid, other=0.0).to(tl.float32)
    cos = tl.load(cos_table + position * HALF + dims % HALF, mask=valid, other=0.0)
    sin = tl.load(sin_table + position * HALF + dims % HALF, mask=valid, other=0.0)
    rotated = wide * cos + tl.where(dims < HALF, -partner, partner) * sin
    if head < HEADS:
        tl.store(source + dims, rotated.to(qkv.dtype.element_ty), mask=valid)
    else:
        tl.store(keys + target + (head - HEADS) * head_stride + dims, rotated.to(keys.dtype.element_ty), mask=valid)


def rotate_and_write(
    qkv: torch.Tensor,
    layer: LayerWeights,
    weights: DecoderWeights,
    cache: LayerCache,
    place: ChunkPlace,
    eps: float,
) -> None:
    """Norm (where the layer has q_norm) and rotate q in place; write rotated k, and v, into the cache.

    qkv `[P, (heads + 2 kv_heads) D]`, cache `[slots, kv_heads, context, D]`.
    """
    kv_heads, d = cache.k.shape[1], cache.k.shape[3]
    total = qkv.shape[1] // d
    q_norm, k_norm = layer.q_norm, layer.k_norm
    _rotate_and_write[(qkv.shape[0], total)](
        qkv, qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
        weights.rope_cos, weights.rope_sin, cache.k, cache.v, place.slot, place.start, place.count,
        eps, cache.k.stride(0), cache.k.stride(1),
        HEADS=total - 2 * kv_heads, KV_HEADS=kv_heads, D=d, DP=triton.next_power_of_2(d),
        QK_NORM=q_norm is not None, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["P", "SPLITS"])
def _attend(
    qkv, keys, values, slot_at, start_at, count_at, out, partial_out, partial_top, partial_total, score_scale,
    slot_stride, head_stride, P, SPLITS,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, GROUP: tl.constexpr,
    M: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    index = tl.program_id(2) * M + tl.arange(0, M)
    row = index // GROUP
    head = kv_head * GROUP + index % GROUP
    start = tl.load(start_at).to(tl.int32)
    count = tl.load(count_at).to(tl.int32)
    length = start + count
    part = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    first = split * part
    # Nothing later than the block's last row is seen by any of its rows.
    last_row = tl.minimum((tl.program_id(2) * M + M - 1) // GROUP, count - 1)
    end = tl.minimum(tl.minimum(first + part, length), start + last_row + 1)

    dims = tl.arange(0, DP)
    real = (row < count)[:, None]
    in_head = (dims < D)[None, :]
    q_at = row * (HEADS + 2 * KV_HEADS) * D + head * D
    q = tl.load(qkv + q_at[:, None] + dims[None, :], mask=real & in_head, other=0.0)
    cache_head = tl.load(slot_at) * slot_stride + kv_head * head_stride
    places = tl.arange(0, TILE)

    top = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, DP), tl.float32)
    at = first
    while at < end:
        here = at + places
        there = (here < length)[:, None] & in_head
        offsets = cache_head + here[:, None].to(tl.int64) * D + dims[None, :]
        k = tl.load(keys + offsets, mask=there, other=0.0)
        v = tl.load(values + offsets, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * score_scale
        seen = (here[None, :] <= (start + row)[:, None]) & (here < end)[None, :] & real
        scores = tl.where(seen, scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        share = tl.where(seen, tl.exp2(scores - new_top[:, None]), 0.0)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(share, axis=1)
        acc = acc * shrink[:, None] + tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
        top = new_top
        at += TILE

    target = row * HEADS + head
    if not SPLIT:
        total = tl.where(total > 0.0, total, 1.0)
        attended = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + target[:, None] * D + dims[None, :], attended, mask=(row < P)[:, None] & in_head)
    else:
        place = split * P * HEADS + target
        tl.store(partial_out + place[:, None] * DP + dims[None, :], acc, mask=(row < P)[:, None])
        tl.store(partial_top + place, top, mask=row < P)
        tl.store(partial_total + place, total, mask=row < P)


@triton.jit(do_not_specialize=["P", "SPLITS"])
def _combine(
    partial_out, partial_top, partial_total, out, P, SPLITS,
    HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SPLITS_P: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(0)
    splits = tl.arange(0, SPLITS_P)
    dims = tl.arange(0, DP)
    there = splits < SPLITS
    place = splits * P * HEADS + target
    tops = tl.load(partial_top + place, mask=there, other=-1e30)
    totals = tl.load(partial_total + place, mask=there, other=0.0)
    parts = tl.load(partial_out + place[:, None] * DP + dims[None, :], mask=there[:, None], other=0.0)
    share = tl.exp2(tops - tl.max(tops, axis=0))
    total = tl.sum(totals * share, axis=0)
    attended = tl.sum(parts * share[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out + target * D + dims, attended.to(out.dtype.element_ty), mask=dims < D)


@dataclass(frozen=True, slots=True)
class ChunkScratch:
    """Partial results of the splits of one chunk of P rows, float32. out `[splits * P * heads, DP]`; top and total
    `[splits * P * heads]`. Empty where the chunk is not split.
    """

    splits: int
    out: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> ChunkScratch:
        """Scratch for chunks of `rows` rows."""
        splits = splits_of(rows, heads, kv_heads)
        places = splits * rows * heads if splits > 1 else 0

        def floats(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        return cls(splits, floats(places, triton.next_power_of_2(head_dim)), floats(places), floats(places))


def splits_of(rows: int, heads: int, kv_heads: int) -> int:
    """How many parts the context of a chunk of `rows` rows is cut into."""
    blocks = kv_heads * triton.cdiv(rows * (heads // kv_heads), _ROWS_A_BLOCK)
    return int(max(1, min(_MOST_SPLITS, _BLOCKS_WANTED // blocks)))


def attend(qkv: torch.Tensor, cache: LayerCache, place: ChunkPlace, out: torch.Tensor, scratch: ChunkScratch) -> None:
    """Causal attention of the rotated q in qkv `[P, (heads + 2 kv_heads) D]` over the slot's context and the chunk.

    out `[P, heads D]`; rows beyond `count` are zeros.
    """
    kv_heads, d = cache.k.shape[1], cache.k.shape[3]
    rows, heads = qkv.shape[0], out.shape[1] // d
    group, padded = heads // kv_heads, triton.next_power_of_2(d)
    m = _ROWS_A_BLOCK if rows * group > _ROWS_A_BLOCK // 2 else _ROWS_A_BLOCK // 2
    _attend[(kv_heads, scratch.splits, triton.cdiv(rows * group, m))](
        qkv, cache.k, cache.v, place.slot, place.start, place.count,
        out, scratch.out, scratch.top, scratch.total, d**-0.5 * _LOG2_E, cache.k.stride(0), cache.k.stride(1),
        rows, scratch.splits,
        HEADS=heads, KV_HEADS=kv_heads, D=d, DP=padded, GROUP=group, M=m, TILE=_TILE, SPLIT=scratch.splits > 1,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=8 if m == _ROWS_A_BLOCK else 4, num_stages=2,
    )  # fmt: skip
    if scratch.splits > 1:
        _combine[(rows * heads,)](
            scratch.out, scratch.top, scratch.total, out, rows, scratch.splits,
            HEADS=heads, D=d, DP=padded, SPLITS_P=_MOST_SPLITS, num_warps=2,
        )  # fmt: skip
