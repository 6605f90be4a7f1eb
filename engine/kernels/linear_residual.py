"""residual += x @ weight.T + bias, in place, in float32. Reads the weight once: 2 N K bytes in bf16.

The new residual is also left as `rounded`, in the weights' type: what the next product reads.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin
from engine.kernels.rows import dot_rows, load_rows, prefetch_rows
from engine.kernels.tuning import RowSetting


@triton.jit
def _linear_residual(
    x, weight, bias, residual, rounded,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BIAS: tl.constexpr, CACHE: tl.constexpr,
    WAVE: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = rows < N
    tiles = load_rows(weight, rows, valid, K, BK, CACHE)
    prefetch_rows(weight, tl.program_id(0), BN, K, N, WAVE, DEPTH)
    offset = tl.zeros((BN,), tl.float32)
    if BIAS:
        offset = tl.load(bias + rows, mask=valid, other=0.0).to(tl.float32)
    begin(PDL)
    for row in tl.static_range(ROWS):
        old = tl.load(residual + row * N + rows, mask=valid, other=0.0)
        product, _ = dot_rows(tiles, x + row * K, K, BN, BK, False)
        new = old + (product + offset)
        tl.store(residual + row * N + rows, new, mask=valid)
        tl.store(rounded + row * N + rows, new.to(rounded.dtype.element_ty), mask=valid)


def linear_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    rounded: torch.Tensor,
    setting: RowSetting,
    launch: Launch,
) -> None:
    """x `[R, K]`, weight `[N, K]`, residual `[R, N]` float32, rounded `[R, N]`, all contiguous."""
    n, k = weight.shape
    _linear_residual[(triton.cdiv(n, setting.rows),)](
        x, weight, weight if bias is None else bias, residual, rounded,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        BIAS=bias is not None, CACHE=setting.cache, **launch.prefetch(setting, weight),
        **launch.options(setting.warps),
    )  # fmt: skip
