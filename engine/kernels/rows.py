"""The product that a decode step is made of: a few rows of a weight matrix times one activation row.

A block takes BN matrix rows whole. Its weights are loaded into registers in tiles of BK columns before the kernel waits
for its predecessor, so they are on their way while the activation is still being made. A thread keeps 16 bytes of each
row and tile; BK is what the block's threads hold at once. The sum of one matrix row has one order: over tiles in each
thread, then across threads. It depends on BK alone, so a row of activations has the same bits beside any others.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(weight, rows, valid, K: tl.constexpr, BK: tl.constexpr, CACHE: tl.constexpr):
    """Rows `[BN]` of weight `[N, K]`, as a tuple of tiles `[BN, BK]`; columns past K and rows not `valid` are 0."""
    tiles = ()
    for tile in tl.static_range((K + BK - 1) // BK):
        columns = tile * BK + tl.arange(0, BK)
        pointers = weight + rows.to(tl.int64)[:, None] * K + columns[None, :]
        loaded = tl.load(
            pointers,
            mask=valid[:, None] & (columns < K)[None, :],
            other=0.0,
            cache_modifier=CACHE,
            eviction_policy="evict_first" if CACHE == "" else "",
        )
        tiles = tiles + (loaded,)  # noqa: RUF005  (Triton has no unpacking here)
    return tiles


@triton.jit
def prefetch_rows(
    weight, block, BN: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WAVE: tl.constexpr, DEPTH: tl.constexpr
):
    """Ask the second-level cache for what the blocks of the next DEPTH waves will load; one thread, one instruction a
    block. The first wave's blocks hold their own weights before they wait for the predecessor; without this the memory
    would then be idle until they end.
    """
    if DEPTH > 0:
        size: tl.constexpr = BN * K * (weight.dtype.element_ty.primitive_bitwidth // 8)
        if block < WAVE:
            for wave in tl.static_range(1, DEPTH + 1):
                row = (block + wave * WAVE) * BN
                if row + BN <= N:
                    address = (weight + row.to(tl.int64) * K).to(tl.int64)
                    tl.inline_asm_elementwise(
                        """
                        {
                        .reg .pred first;
                        .reg .b32 thread;
                        mov.u32 thread, %tid.x;
                        setp.eq.u32 first, thread, 0;
                        @first cp.async.bulk.prefetch.L2.global [$1], $2;
                        mov.u32 $0, 0;
                        }
                        """,
                        "=r,l,r",
                        [address, size],
                        dtype=tl.int32,
                        is_pure=False,
                        pack=1,
                    )


@triton.jit
def dot_rows(tiles, x, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr):
    """Products `[BN]` float32 of the loaded rows and activation x `[K]`, and, where NORM, the sum of squares of x."""
    total = tl.zeros((BN, BK), tl.float32)
    squares = tl.zeros((BK,), tl.float32)
    for tile in tl.static_range((K + BK - 1) // BK):
        columns = tile * BK + tl.arange(0, BK)
        value = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
        total = tl.fma(tiles[tile].to(tl.float32), tl.broadcast_to(value[None, :], (BN, BK)), total)
        if NORM:
            squares = tl.fma(value, value, squares)
    product = tl.sum(total, axis=1)
    square_sum = 0.0
    if NORM:
        square_sum = tl.sum(squares, axis=0)
    return product, square_sum
