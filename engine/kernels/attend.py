"""Rotate q and k, write the new keys and values, and attend over the slot's context: one kernel.

Reads 4 n D bytes a key head in bf16 for a context of n, and the `qkv` row. A short context is one block's work for each
query head and row. A long one is split, and a split of it is one block's work for all query heads of a key head. Which
way, and into which splits, depends on the context's length alone, which is device data: a row of length n has the same
bits in every bucket and beside any other rows. The block that finishes last combines the splits, always in the order
of their places.

Old keys and values, position and rotary tables are read before the kernel waits for its predecessor, the new keys and
values after it, from `qkv`: a row never reads what another block writes in the same launch.

The file is longer than others because its two ways, short and long, are one kernel: which of them a block takes is
decided on the device.
"""

# Triton's tuples grow, which Python's types do not express.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, allow_next, wait_previous
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, SlotTable
from engine.kernels.tuning import AttendSetting

_LOG2_E = 1.4426950408889634
_LEAST_MATRIX_ROWS = 16


@triton.jit
def _rotated(source, norm_weight, cos, sin, dims, valid, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Heads of D at `source`, float32 in the shape of that block of pointers, normed where NORM, rotated."""
    HALF: tl.constexpr = D // 2
    partner_dims = (dims + HALF) % D
    value = tl.load(source + dims, mask=valid, other=0.0).to(tl.float32)
    partner = tl.load(source + partner_dims, mask=valid, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / D + eps)
        value = value * factor * tl.load(norm_weight + dims, mask=dims < D, other=0.0).to(tl.float32)
        partner = partner * factor * tl.load(norm_weight + partner_dims, mask=dims < D, other=0.0).to(tl.float32)
    return value * cos + tl.where(dims < HALF, -partner, partner) * sin


@triton.jit
def _alone(
    q_source, k_source, v_source, q_norm, k_norm, cos_table, sin_table, keys, values, target, position, row, writes,
    eps, score_scale,
    D: tl.constexpr, DP: tl.constexpr, ROW_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    LANES: tl.constexpr, QK_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One query head over a whole short context. `keys` and `values` point at the slot's head.

    A tile is [LANES, TILE // LANES, DP]: a lane is as many threads as hold one head, 16 bytes each. What is the same
    for all positions is held [LANES, DP], where the threads need it, and each lane has a softmax of its own until the
    end: within the loop nothing crosses a warp.
    """
    HALF: tl.constexpr = D // 2
    TURNS: tl.constexpr = TILE // LANES
    length = position + row + 1
    lanes = tl.arange(0, LANES)[:, None]
    dims = tl.arange(0, DP)[None, :] + lanes * 0
    in_head = dims < D
    offsets = tl.arange(0, TURNS)[None, :, None] * LANES + lanes[:, :, None]
    tile_dims = tl.arange(0, DP)[None, None, :]
    row_cos = tl.load(cos_table + (position + row) * HALF + dims % HALF, mask=in_head, other=0.0)
    row_sin = tl.load(sin_table + (position + row) * HALF + dims % HALF, mask=in_head, other=0.0)
    key_tiles = keys + offsets * D + tile_dims
    value_tiles = values + offsets * D + tile_dims
    old = (offsets < position) & (tile_dims < D)
    k = tl.load(key_tiles, mask=old, other=0.0)
    v = tl.load(value_tiles, mask=old, other=0.0)

    wait_previous(PDL)
    new_keys = ()
    new_values = ()
    for other in tl.static_range(ROWS):
        new_cos = row_cos
        new_sin = row_sin
        if ROWS > 1:
            new_cos = tl.load(cos_table + (position + other) * HALF + dims % HALF, mask=in_head, other=0.0)
            new_sin = tl.load(sin_table + (position + other) * HALF + dims % HALF, mask=in_head, other=0.0)
        new_key = _rotated(k_source + other * ROW_SIZE, k_norm, new_cos, new_sin, dims, in_head, eps, D, QK_NORM)
        new_value = tl.load(v_source + other * ROW_SIZE + dims, mask=in_head, other=0.0)
        new_keys = new_keys + (new_key.to(keys.dtype.element_ty),)  # noqa: RUF005
        new_values = new_values + (new_value.to(values.dtype.element_ty),)  # noqa: RUF005
    q = _rotated(q_source, q_norm, row_cos, row_sin, dims, in_head, eps, D, QK_NORM) * score_scale
    largest = tl.full((LANES,), -1e30, tl.float32)  # a finite bottom keeps idle lanes free of NaN
    total = tl.zeros((LANES,), tl.float32)
    sums = tl.zeros((LANES, DP), tl.float32)

    first = position * 0
    while first < length:
        places = first + offsets
        following = first + TILE
        old = ((following + offsets) < position) & (tile_dims < D)
        next_k = tl.load(key_tiles + following * D, mask=old, other=0.0)
        next_v = tl.load(value_tiles + following * D, mask=old, other=0.0)
        for other in tl.static_range(ROWS):
            k = tl.where(places == position + other, new_keys[other][:, None, :], k)
            v = tl.where(places == position + other, new_values[other][:, None, :], v)
        valid = tl.reshape(places, (LANES, TURNS)) < length
        scores = tl.where(valid, tl.sum(k.to(tl.float32) * q[:, None, :], axis=2), -1e30)
        top = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.where(valid, tl.exp2(scores - top[:, None]), 0.0)
        shrink = tl.exp2(largest - top)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.sum(weights[:, :, None] * v.to(tl.float32), axis=1)
        largest = top
        k = next_k
        v = next_v
        first = following

    shrink = tl.exp2(largest - tl.max(largest, axis=0))
    attended = tl.sum(sums * shrink[:, None], axis=0) / tl.sum(total * shrink, axis=0)
    flat = tl.arange(0, DP)
    tl.store(target + flat, attended.to(target.dtype.element_ty), mask=flat < D)
    # After the answer, so that nobody waits for it: the row's own key and value.
    if writes:
        for other in tl.static_range(ROWS):
            if other == row:
                written = (position + other) * D + dims
                mine = in_head & (lanes == 0)
                tl.store(keys + written, new_keys[other], mask=mine)
                tl.store(values + written, new_values[other], mask=mine)


@triton.jit
def _split(
    q_source, k_source, v_source, q_norm, k_norm, cos_table, sin_table, keys, values, target,
    partial_out, partial_max, partial_sum, arrival, position, row, split, chunk, eps, score_scale,
    SHARED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROW_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, MOST_P: tl.constexpr, QK_NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The SHARED query heads of a key head over one split of a long context, as matrix products of GROUP rows.

    The block that arrives last combines the splits in the order of their places.
    """
    HALF: tl.constexpr = D // 2
    length = position + row + 1
    start = split * chunk
    end = tl.minimum(start + chunk, length)
    heads = tl.arange(0, GROUP)[:, None]
    dims = tl.arange(0, DP)[None, :]
    in_head = dims < D
    group_dims = dims + heads * 0
    real = (heads < SHARED) & in_head
    offsets = tl.arange(0, TILE)
    row_cos = tl.load(cos_table + (position + row) * HALF + group_dims % HALF, mask=real, other=0.0)
    row_sin = tl.load(sin_table + (position + row) * HALF + group_dims % HALF, mask=real, other=0.0)
    key_tiles = keys + offsets[:, None] * D + dims
    value_tiles = values + offsets[:, None] * D + dims
    old = ((start + offsets) < position)[:, None] & in_head
    k = tl.load(key_tiles + start * D, mask=old, other=0.0)
    v = tl.load(value_tiles + start * D, mask=old, other=0.0)

    wait_previous(PDL)
    new_keys = ()
    new_values = ()
    for other in tl.static_range(ROWS):
        new_cos = tl.load(cos_table + (position + other) * HALF + dims % HALF, mask=in_head, other=0.0)
        new_sin = tl.load(sin_table + (position + other) * HALF + dims % HALF, mask=in_head, other=0.0)
        new_key = _rotated(k_source + other * ROW_SIZE, k_norm, new_cos, new_sin, dims, in_head, eps, D, QK_NORM)
        new_value = tl.load(v_source + other * ROW_SIZE + dims, mask=in_head, other=0.0)
        new_keys = new_keys + (new_key.to(keys.dtype.element_ty),)  # noqa: RUF005
        new_values = new_values + (new_value.to(values.dtype.element_ty),)  # noqa: RUF005
    q = _rotated(q_source + heads * D, q_norm, row_cos, row_sin, group_dims, real, eps, D, QK_NORM)
    q = (q * score_scale).to(keys.dtype.element_ty)
    largest = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    sums = tl.zeros((GROUP, DP), tl.float32)

    first = start
    while first < end:
        places = first + offsets
        following = first + TILE
        old = ((following + offsets) < tl.minimum(position, end))[:, None] & in_head
        next_k = tl.load(key_tiles + following * D, mask=old, other=0.0)
        next_v = tl.load(value_tiles + following * D, mask=old, other=0.0)
        for other in tl.static_range(ROWS):
            k = tl.where((places == position + other)[:, None], new_keys[other], k)
            v = tl.where((places == position + other)[:, None], new_values[other], v)
        valid = (places < end)[None, :]
        scores = tl.where(valid, tl.dot(q, tl.trans(k), input_precision="ieee"), -1e30)
        top = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.where(valid, tl.exp2(scores - top[:, None]), 0.0)
        shrink = tl.exp2(largest - top)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = tl.dot(weights.to(v.dtype), v, acc=sums * shrink[:, None], input_precision="ieee")
        largest = top
        k = next_k
        v = next_v
        first = following

    if end == length:
        for other in tl.static_range(ROWS):
            if other == row:
                written = (position + other) * D + dims
                tl.store(keys + written, new_keys[other], mask=in_head)
                tl.store(values + written, new_values[other], mask=in_head)
    place = split * SHARED
    kept = tl.arange(0, GROUP) < SHARED
    tl.store(partial_out + (place + heads) * DP + dims, sums, mask=(heads < SHARED) & (dims < DP))
    tl.store(partial_max + place + tl.arange(0, GROUP), largest, mask=kept)
    tl.store(partial_sum + place + tl.arange(0, GROUP), total, mask=kept)
    tl.debug_barrier()  # the whole block has stored before it is counted
    used = tl.cdiv(length, chunk)
    if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == used - 1:
        splits = tl.arange(0, MOST_P)
        there = splits < used
        tops = ()
        totals = ()
        parts = ()
        for head in tl.static_range(SHARED):
            at = splits * SHARED + head
            tops = tops + (tl.load(partial_max + at, mask=there, other=-1e30, cache_modifier=".cg"),)  # noqa: RUF005
            totals = totals + (tl.load(partial_sum + at, mask=there, other=0.0, cache_modifier=".cg"),)  # noqa: RUF005
            pointers = partial_out + at[:, None] * DP + dims
            part = tl.load(pointers, mask=there[:, None], other=0.0, cache_modifier=".cg")
            parts = parts + (part,)  # noqa: RUF005
        flat = tl.arange(0, DP)
        for head in tl.static_range(SHARED):
            share = tl.exp2(tops[head] - tl.max(tops[head], axis=0))
            combined = tl.sum(parts[head] * share[:, None], axis=0) / tl.sum(totals[head] * share, axis=0)
            tl.store(target + head * D + flat, combined.to(target.dtype.element_ty), mask=flat < D)
        tl.store(arrival, 0)


@triton.jit
def _attend(
    qkv, q_norm, k_norm, cos_table, sin_table, keys, values, active, position_table, out,
    partial_out, partial_max, partial_sum, arrivals, eps, score_scale, slot_stride, head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, LANES: tl.constexpr, SPLIT_TILE: tl.constexpr, SINGLE: tl.constexpr, SPLITS: tl.constexpr,
    GROUP: tl.constexpr, MOST: tl.constexpr, MOST_P: tl.constexpr, QK_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # MOST is the launch's splits. Partials lie as [row, key head, split, query head of the group, ...].
    allow_next(PDL)
    head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    ROW_SIZE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    kv_head = head // SHARED
    slot = tl.load(active)
    position = tl.load(position_table + slot).to(tl.int32)
    length = position + row + 1
    q_source = qkv + row * ROW_SIZE + head * D
    k_source = qkv + (HEADS + kv_head) * D
    v_source = k_source + KV_HEADS * D
    cache_head = slot * slot_stride + kv_head * head_stride
    target = out + row * HEADS * D + head * D
    leads = head % SHARED == 0
    if length <= SINGLE:
        if split == 0:
            _alone(
                q_source, k_source, v_source, q_norm, k_norm, cos_table, sin_table,
                keys + cache_head, values + cache_head, target, position, row, leads, eps, score_scale,
                D, DP, ROW_SIZE, ROWS, TILE, LANES, QK_NORM, PDL,
            )  # fmt: skip
    elif MOST > 1:
        chunk = tl.cdiv(tl.cdiv(length, SPLITS), SPLIT_TILE) * SPLIT_TILE
        if leads & (split * chunk < length):
            group = row * KV_HEADS + kv_head
            place = group * MOST * SHARED
            _split(
                q_source, k_source, v_source, q_norm, k_norm, cos_table, sin_table,
                keys + cache_head, values + cache_head, target, partial_out + place * DP, partial_max + place,
                partial_sum + place, arrivals + group, position, row, split, chunk, eps, score_scale,
                SHARED, GROUP, D, DP, ROW_SIZE, ROWS, SPLIT_TILE, MOST_P, QK_NORM, PDL,
            )  # fmt: skip


def splits_of(setting: AttendSetting, bucket: int) -> int:
    """Most splits that any context up to `bucket` is cut into."""
    if bucket <= setting.single:
        return 1
    return min(setting.splits, -(-bucket // setting.split_tile))


@dataclass(frozen=True, slots=True)
class AttendScratch:
    """Partial results of the splits. out `[rows * heads * splits, DP]`, largest and total `[rows * heads * splits]`
    float32; arrivals `[rows * heads]` int32, zero between launches.
    """

    out: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, heads: int, head_dim: int, splits: int, device: torch.device) -> AttendScratch:
        """Room for `rows` rows and any bucket."""
        places = rows * heads * splits

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        return cls(
            out=floats(places, triton.next_power_of_2(head_dim)),
            largest=floats(places),
            total=floats(places),
            arrivals=torch.zeros(rows * heads, dtype=torch.int32, device=device),
        )


def attend(
    qkv: torch.Tensor,
    layer: LayerWeights,
    weights: DecoderWeights,
    cache: LayerCache,
    table: SlotTable,
    bucket: int,
    eps: float,
    out: torch.Tensor,
    scratch: AttendScratch,
    setting: AttendSetting,
    launch: Launch,
) -> None:
    """See Ops.attend. qkv `[R, (heads + 2 kv_heads) D]`, out `[R, heads D]`, cache `[S, kv_heads, context, D]`."""
    rows = qkv.shape[0]
    kv_heads, d = cache.k.shape[1], cache.k.shape[3]
    heads = out.shape[1] // d
    most = splits_of(setting, bucket)
    padded = triton.next_power_of_2(d)
    q_norm, k_norm = layer.q_norm, layer.k_norm
    _attend[(heads, most, rows)](
        qkv, qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
        weights.rope_cos, weights.rope_sin, cache.k, cache.v, table.active, table.position, out,
        scratch.out, scratch.largest, scratch.total, scratch.arrivals,
        eps, d**-0.5 * _LOG2_E, cache.k.stride(0), cache.k.stride(1),
        HEADS=heads, KV_HEADS=kv_heads, D=d, DP=padded, ROWS=rows,
        TILE=setting.tile, LANES=setting.lanes(padded, cache.k.element_size()), SPLIT_TILE=setting.split_tile,
        SINGLE=setting.single, SPLITS=setting.splits,
        GROUP=max(_LEAST_MATRIX_ROWS, triton.next_power_of_2(heads // kv_heads)),
        MOST=most, MOST_P=triton.next_power_of_2(setting.splits), QK_NORM=q_norm is not None, PDL=launch.dependent,
        **launch.options(setting.warps, fused=True),
    )  # fmt: skip
