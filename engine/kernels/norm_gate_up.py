"""out = silu(gate) * up, where gate and up are halves of rms_norm(x) @ weight.T. Reads 4 F K bytes in bf16.

A block takes the same rows of both halves, interleaved, so that one sum across threads serves both.
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
def _norm_gate_up(
    x, weight, bias, out, eps,
    F: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, CACHE: tl.constexpr,
    WAVE: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, 2 * BN)
    rows = tl.program_id(0) * BN + pair // 2
    valid = rows < F
    matrix_rows = rows + (pair % 2) * F
    tiles = load_rows(weight, matrix_rows, valid, K, BK, CACHE)
    prefetch_rows(weight, tl.program_id(0), BN, K, F, WAVE, DEPTH)
    prefetch_rows(weight + F * K, tl.program_id(0), BN, K, F, WAVE, DEPTH)
    offset = tl.zeros((2 * BN,), tl.float32)
    if BIAS:
        offset = tl.load(bias + matrix_rows, mask=valid, other=0.0).to(tl.float32)
    outputs = tl.program_id(0) * BN + tl.arange(0, BN)
    begin(PDL)
    for row in tl.static_range(ROWS):
        product, square_sum = dot_rows(tiles, x + row * K, K, 2 * BN, BK, NORM)
        if NORM:
            product = product * tl.rsqrt(square_sum / K + eps)
        gate, up = tl.split(tl.reshape(product + offset, (BN, 2)))
        hidden = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + row * F + outputs, hidden.to(out.dtype.element_ty), mask=outputs < F)


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
    _norm_gate_up[(triton.cdiv(f, setting.rows),)](
        x, weight, weight if bias is None else bias, out, eps,
        F=f, K=k, ROWS=x.shape[0], BN=setting.rows, BK=setting.tile(weight.element_size()),
        NORM=norm, BIAS=bias is not None, CACHE=setting.cache, **launch.prefetch(setting, weight),
        **launch.options(setting.warps),
    )  # fmt: skip
