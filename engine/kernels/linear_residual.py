"""residual += x @ weight.T + bias, in place, in float32. Reads the weight once: 2 N K bytes in bf16.

The new residual is also left as `rounded`, in the weights' type: what the next product reads.
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


@triton.jit
def _finish(
    tiles, activations, x, bias, residual, rounded, block,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    rows = block * BN + tl.arange(0, BN)
    valid = rows < N
    offset = tl.zeros((BN,), tl.float32)
    if BIAS:
        offset = tl.load(bias + rows, mask=valid, other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        old = tl.load(residual + row * N + rows, mask=valid, other=0.0)
        product = dot_rows(tiles, activations, x, row, ROWS, K, BN, BK)
        new = old + (product + offset)
        tl.store(residual + row * N + rows, new, mask=valid)
        tl.store(rounded + row * N + rows, new.to(rounded.dtype.element_ty), mask=valid)


@triton.jit
def _linear_residual(
    x, weight, bias, residual, rounded,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr,
    BIAS: tl.constexpr,
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
                _finish(buffers[ahead], activations, x, bias, residual, rounded, now, N, K, ROWS, BN, BK, BIAS)
                tiles = load_rows(weight, block + (BUFFERS + ahead) * stride, 0, N, BN, K, BK)
                fresh = fresh + (tiles,)  # noqa: RUF005
            buffers = fresh
            block += BUFFERS * stride
    else:
        _finish(buffers[0], activations, x, bias, residual, rounded, block, N, K, ROWS, BN, BK, BIAS)


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
    _linear_residual[setting.grid(n, launch.processors)](
        x, weight, weight if bias is None else bias, residual, rounded,
        N=n, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        BIAS=bias is not None, **launch.products(setting, n),
        **launch.options(setting.warps, registers=setting.registers),
    )  # fmt: skip
