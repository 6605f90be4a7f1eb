"""out = rms_norm(x) * weight, one block a row, and the plain rounding of x. Reads 4 K bytes a row.

Beside wide matrices this costs less than a sum of squares in every block of the product: the product's weights are
already loading while this runs.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, allow_next, wait_previous


@triton.jit
def _norm(
    x, weight, out, eps,
    K: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, WEIGHTED: tl.constexpr, EARLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    valid = columns < K
    if EARLY:
        allow_next(PDL)
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    if WEIGHTED:
        factor = tl.load(weight + columns, mask=valid, other=0.0).to(tl.float32)
    wait_previous(PDL)
    if not EARLY:
        allow_next(PDL)
    value = tl.load(x + row * K + columns, mask=valid, other=0.0)
    if NORM:
        value = value * tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
    tl.store(out + row * K + columns, (value * factor).to(out.dtype.element_ty), mask=valid)


def norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    launch: Launch,
    *,
    norm: bool = True,
    early: bool = True,
) -> None:
    """x `[R, K]` float32, weight `[K]` or None, out `[R, K]`. With `norm` off, x is only rounded to out's type."""
    rows, k = x.shape
    block = triton.next_power_of_2(k)
    _norm[(rows,)](
        x, x if weight is None else weight, out, eps,
        K=k, BLOCK=block, NORM=norm, WEIGHTED=weight is not None, EARLY=early, PDL=launch.dependent,
        **launch.options(min(16, max(1, block // 256))),
    )  # fmt: skip
