"""logits = x @ head.T in float32, and the best id of the rows so far. Reads 2 V K bytes in bf16.

x is normalised already. The best id is kept as one 64-bit integer, the logit's bits made sortable above the
complement of the id: the largest such key is the largest logit, and of equal logits the lowest id. Integer maxima do
not depend on their order, so blocks fold theirs into `keys` with atomics; KEYS of them, to keep blocks apart.
"""

# Triton's tuples grow, which Python's types do not express.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin
from engine.kernels.rows import dot_rows, load_activation, load_rows
from engine.kernels.tuning import RowSetting

KEYS = 64
NO_KEY = -(2**63)
EMPTY = tl.constexpr(NO_KEY)


@triton.jit
def _ordering_key(value, ids):
    """Keys int64 of logits float32 `[BN]` and ids int32 `[BN]`. A NaN of positive sign comes first, as in argmax."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    sortable = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (sortable.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _finish(
    tiles, activations, x, logits, keys, block,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SLOTS: tl.constexpr, WITH_KEYS: tl.constexpr,
):  # fmt: skip
    rows = block * BN + tl.arange(0, BN)
    valid = rows < N
    for row in tl.static_range(ROWS):
        product = dot_rows(tiles, activations, x, row, ROWS, K, BN, BK)
        tl.store(logits + row * N + rows, product, mask=valid)
        if WITH_KEYS:
            best = tl.max(tl.where(valid, _ordering_key(product, rows), EMPTY), axis=0)
            tl.atomic_max(keys + row * SLOTS + block % SLOTS, best, sem="relaxed")


@triton.jit
def _head(
    x, weight, logits, keys,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr,
    SLOTS: tl.constexpr, WITH_KEYS: tl.constexpr,
    BUFFERS: tl.constexpr, LOOP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    stride = tl.num_programs(0)
    buffers = ()
    for ahead in tl.static_range(BUFFERS):
        tiles = load_rows(weight, block + ahead * stride, 0, N, BN, K, BK)
        buffers = buffers + (tiles,)  # noqa: RUF005
    begin(PDL)
    activations = ()
    if ROWS == 1:
        activations = load_activation(x, K, BK)
    if LOOP:
        while block < BLOCKS:
            fresh = ()
            for ahead in tl.static_range(BUFFERS):
                now = block + ahead * stride
                _finish(buffers[ahead], activations, x, logits, keys, now, N, K, ROWS, BN, BK, SLOTS, WITH_KEYS)
                tiles = load_rows(weight, block + (BUFFERS + ahead) * stride, 0, N, BN, K, BK)
                fresh = fresh + (tiles,)  # noqa: RUF005
            buffers = fresh
            block += BUFFERS * stride
    else:
        _finish(buffers[0], activations, x, logits, keys, block, N, K, ROWS, BN, BK, SLOTS, WITH_KEYS)


def head(
    x: torch.Tensor,
    weight: torch.Tensor,
    logits: torch.Tensor,
    keys: torch.Tensor | None,
    setting: RowSetting,
    launch: Launch,
) -> None:
    """x `[R, K]`, weight `[V, K]`, logits `[R, V]` float32, keys `[R, KEYS]` int64 or None, all contiguous.

    keys must hold NO_KEY before; `pick` leaves them so.
    """
    n, k = weight.shape
    _head[setting.grid(n, launch.processors)](
        x, weight, logits, logits if keys is None else keys,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        SLOTS=KEYS, WITH_KEYS=keys is not None, **launch.products(setting, n),
        **launch.options(setting.warps, registers=setting.registers),
    )  # fmt: skip
