"""logits = x @ head.T in float32, and the best id of the rows so far. Reads 2 V K bytes in bf16.

x is normalised already. The best id is kept as one 64-bit integer, the logit's bits made sortable above the
complement of the id: the largest such key is the largest logit, and of equal logits the lowest id. Integer maxima do
not depend on their order, so blocks fold theirs into `keys` with atomics; KEYS of them, to keep blocks apart.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin
from engine.kernels.rows import dot_rows, load_rows, prefetch_rows
from engine.kernels.tuning import RowSetting

KEYS = 64
NO_KEY = -(2**63)


@triton.jit
def _ordering_key(value, ids):
    """Keys int64 of logits float32 `[BN]` and ids int32 `[BN]`. A NaN of positive sign comes first, as in argmax."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    sortable = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (sortable.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _head(
    x, weight, logits, keys,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SLOTS: tl.constexpr, WITH_KEYS: tl.constexpr, CACHE: tl.constexpr,
    WAVE: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    rows = block * BN + tl.arange(0, BN)
    valid = rows < N
    tiles = load_rows(weight, rows, valid, K, BK, CACHE)
    prefetch_rows(weight, tl.program_id(0), BN, K, N, WAVE, DEPTH)
    begin(PDL)
    for row in tl.static_range(ROWS):
        product, _ = dot_rows(tiles, x + row * K, K, BN, BK, False)
        tl.store(logits + row * N + rows, product, mask=valid)
        if WITH_KEYS:
            candidates = _ordering_key(tl.where(valid, product, float("-inf")), rows)
            tl.atomic_max(keys + row * SLOTS + block % SLOTS, tl.max(candidates, axis=0), sem="relaxed")


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
    _head[(triton.cdiv(n, setting.rows),)](
        x, weight, logits, logits if keys is None else keys,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        SLOTS=KEYS, WITH_KEYS=keys is not None, CACHE=setting.cache, **launch.prefetch(setting, weight),
        **launch.options(setting.warps),
    )  # fmt: skip
