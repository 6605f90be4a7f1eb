"""out = silu(gate) * up, where gate and up are halves of rms_norm(x) @ weight.T. Reads 4 F K bytes in bf16.

A block takes the same rows of both halves, interleaved, so that one sum across threads serves both.
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
    F: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    outputs = block * BN + tl.arange(0, BN)
    offset = tl.zeros((2 * BN,), tl.float32)
    if BIAS:
        pair = tl.arange(0, 2 * BN)
        rows = block * BN + pair // 2
        offset = tl.load(bias + rows + (pair % 2) * F, mask=rows < F, other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        product = dot_rows(tiles, activations, x, row, ROWS, K, 2 * BN, BK) * factors[row]
        gate, up = tl.split(tl.reshape(product + offset, (BN, 2)))
        hidden = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + row * F + outputs, hidden.to(out.dtype.element_ty), mask=outputs < F)


@triton.jit
def _norm_gate_up(
    x, weight, bias, out, eps,
    F: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr,
    BUFFERS: tl.constexpr, LOOP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    stride = tl.num_programs(0)
    buffers = ()
    for ahead in tl.static_range(BUFFERS):
        tiles = load_rows(weight, block + ahead * stride, F, F, BN, K, BK)
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
                _finish(buffers[ahead], activations, factors, x, bias, out, now, F, K, ROWS, BN, BK, BIAS)
                tiles = load_rows(weight, block + (BUFFERS + ahead) * stride, F, F, BN, K, BK)
                fresh = fresh + (tiles,)  # noqa: RUF005
            buffers = fresh
            block += BUFFERS * stride
    else:
        _finish(buffers[0], activations, factors, x, bias, out, block, F, K, ROWS, BN, BK, BIAS)


def norm_gate_up(
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
    """x `[R, K]`, weight `[2 F, K]`, out `[R, F]`, all contiguous."""
    k, f = weight.shape[1], out.shape[1]
    _norm_gate_up[setting.grid(f, launch.processors)](
        x, weight, weight if bias is None else bias, out, eps,
        F=f, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        NORM=norm, BIAS=bias is not None, **launch.products(setting, f),
        **launch.options(setting.warps, registers=setting.registers),
    )  # fmt: skip
