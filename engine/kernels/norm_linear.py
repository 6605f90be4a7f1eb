"""out = rms_norm(x) @ weight.T + bias. Reads the weight once: 2 N K bytes in bf16.

The norm's own weight is folded into the matrix, so the norm is one factor per row of x, applied to the finished sums.
With NORM off, x is taken as it is.
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
def _norm_linear(
    x, weight, bias, out, eps,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, CACHE: tl.constexpr,
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
        product, square_sum = dot_rows(tiles, x + row * K, K, BN, BK, NORM)
        if NORM:
            product = product * tl.rsqrt(square_sum / K + eps)
        tl.store(out + row * N + rows, (product + offset).to(out.dtype.element_ty), mask=valid)


def norm_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    setting: RowSetting,
    launch: Launch,
    *,
    norm: bool,
) -> None:
    """x `[R, K]`, weight `[N, K]`, bias `[N]` or None, out `[R, N]`, all contiguous."""
    n, k = weight.shape
    _norm_linear[(triton.cdiv(n, setting.rows),)](
        x, weight, weight if bias is None else bias, out, eps,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        NORM=norm, BIAS=bias is not None, CACHE=setting.cache, **launch.prefetch(setting, weight),
        **launch.options(setting.warps),
    )  # fmt: skip
