"""The product that a decode step is made of: a few rows of a weight matrix times one activation row.

A block takes BN matrix rows whole. Its weights are loaded into registers in tiles of BK columns before the kernel waits
for its predecessor, so they are on their way while the activation is still being made. A thread keeps 16 bytes of each
row and tile; BK is what the block's threads hold at once. The sum of one matrix row has one order: over tiles in each
thread, then across threads. It depends on BK alone, so a row of activations has the same bits beside any others.

A kernel's grid is either one block for each BN rows, or as many as the device holds at once, each taking every
so-manieth BN rows with BUFFERS of them loaded ahead. In the latter all blocks run from the start, so the next kernel's
can be launched long before the end, and the activation is read, and its norm summed, once a block.
"""

# Triton's tuples grow, which Python's types do not express.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(
    weight, block, SECOND: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    """The BN rows of block `block` of weight `[N, K]`, as a tuple of tiles `[BN, BK]`; what lies outside is 0.

    With SECOND, a matrix lies SECOND rows further on, and its rows are interleaved: tiles are `[2 BN, BK]`.
    """
    if SECOND > 0:
        pair = tl.arange(0, 2 * BN)
        first = block * BN + pair // 2
        rows = first + (pair % 2) * SECOND
    else:
        first = block * BN + tl.arange(0, BN)
        rows = first
    tiles = ()
    for tile in tl.static_range((K + BK - 1) // BK):
        columns = tile * BK + tl.arange(0, BK)
        loaded = tl.load(
            weight + rows.to(tl.int64)[:, None] * K + columns[None, :],
            mask=(first < N)[:, None] & (columns < K)[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        tiles = tiles + (loaded,)  # noqa: RUF005  (Triton has no unpacking here)
    return tiles


@triton.jit
def load_activation(x, K: tl.constexpr, BK: tl.constexpr):
    """x `[K]` as a tuple of tiles `[BK]`, in its own type; elements past K are 0."""
    tiles = ()
    for tile in tl.static_range((K + BK - 1) // BK):
        columns = tile * BK + tl.arange(0, BK)
        tiles = tiles + (tl.load(x + columns, mask=columns < K, other=0.0),)  # noqa: RUF005
    return tiles


@triton.jit
def norm_factors(activations, x, eps, K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr):
    """Each row's RMS norm as one factor, a tuple of ROWS; 1 where NORM is off. One row is at hand in `activations`."""
    factors = ()
    for row in tl.static_range(ROWS):
        factor = 1.0
        if NORM:
            tiles = activations
            if ROWS > 1:
                tiles = load_activation(x + row * K, K, BK)
            squares = tl.zeros((BK,), tl.float32)
            for tile in tl.static_range((K + BK - 1) // BK):
                value = tiles[tile].to(tl.float32)
                squares = tl.fma(value, value, squares)
            factor = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        factors = factors + (factor,)  # noqa: RUF005
    return factors


@triton.jit
def dot_rows(
    tiles, activations, x, row: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Products `[BN]` float32 of the loaded matrix rows and row `row` of x, which is at hand if it is the only one."""
    values = activations
    if ROWS > 1:
        values = load_activation(x + row * K, K, BK)
    total = tl.zeros((BN, BK), tl.float32)
    for tile in tl.static_range((K + BK - 1) // BK):
        value = tl.broadcast_to(values[tile].to(tl.float32)[None, :], (BN, BK))
        total = tl.fma(tiles[tile].to(tl.float32), value, total)
    return tl.sum(total, axis=1)
