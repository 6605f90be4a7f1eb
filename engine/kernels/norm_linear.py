"""out = rms_norm(x) @ weight.T + bias. Reads the weight once: 2 N K bytes in bf16.

The norm's own weight is folded into the matrix, so the norm is one factor per row of x, applied to the finished sums.
With NORM off, x is taken as it is.
"""

# Triton's tuples grow, which Python's types do not express.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin
from engine.kernels.rows import dot_rows, load_activation, load_rows, norm_factors
from engine.kernels.tuning import RowSetting


@triton.jit
def _finish(
    tiles, activations, factors, x, bias, out, block,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    rows = block * BN + tl.arange(0, BN)
    valid = rows < N
    offset = tl.zeros((BN,), tl.float32)
    if BIAS:
        offset = tl.load(bias + rows, mask=valid, other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        product = dot_rows(tiles, activations, x, row, ROWS, K, BN, BK) * factors[row]
        tl.store(out + row * N + rows, (product + offset).to(out.dtype.element_ty), mask=valid)


@triton.jit
def _norm_linear(
    x, weight, bias, out, eps,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr,
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
    factors = norm_factors(activations, x, eps, K, BK, ROWS, NORM)
    if LOOP:
        while block < BLOCKS:
            fresh = ()
            for ahead in tl.static_range(BUFFERS):
                now = block + ahead * stride
                _finish(buffers[ahead], activations, factors, x, bias, out, now, N, K, ROWS, BN, BK, BIAS)
                tiles = load_rows(weight, block + (BUFFERS + ahead) * stride, 0, N, BN, K, BK)
                fresh = fresh + (tiles,)  # noqa: RUF005
            buffers = fresh
            block += BUFFERS * stride
    else:
        _finish(buffers[0], activations, factors, x, bias, out, block, N, K, ROWS, BN, BK, BIAS)


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
    _norm_linear[setting.grid(n, launch.processors)](
        x, weight, weight if bias is None else bias, out, eps,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        NORM=norm, BIAS=bias is not None, **launch.products(setting, n),
        **launch.options(setting.warps, registers=setting.registers),
    )  # fmt: skip
