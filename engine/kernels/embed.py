"""The embedding of the active slot's token, or of given ids, into the residual stream. Reads 2 K bytes a row."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin


@triton.jit
def embed_row(embedding, token, x, rounded, K: tl.constexpr, BLOCK: tl.constexpr):
    """x, rounded `[K]` = embedding[token]."""
    columns = tl.arange(0, BLOCK)
    valid = columns < K
    value = tl.load(embedding + token * K + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(x + columns, value, mask=valid)
    tl.store(rounded + columns, value.to(rounded.dtype.element_ty), mask=valid)


@triton.jit
def _embed(
    embedding, active, token, ids, x, rounded,
    K: tl.constexpr, BLOCK: tl.constexpr, GIVEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    begin(PDL)
    if GIVEN:
        chosen = tl.load(ids + row)
    else:
        chosen = tl.load(token + tl.load(active))
    embed_row(embedding, chosen, x + row * K, rounded + row * K, K, BLOCK)


def embed(
    embedding: torch.Tensor,
    active: torch.Tensor,
    token: torch.Tensor,
    ids: torch.Tensor | None,
    x: torch.Tensor,
    rounded: torch.Tensor,
    launch: Launch,
) -> None:
    """x[0] = embedding[token[active]], or with ids `[R]` int64 every x[r] = embedding[ids[r]].

    embedding `[V, K]`, active `[1]` and token `[S]` int64, x `[R, K]` float32, rounded `[R, K]`.
    """
    k = embedding.shape[1]
    block = triton.next_power_of_2(k)
    _embed[(1 if ids is None else ids.shape[0],)](
        embedding, active, token, token if ids is None else ids, x, rounded,
        K=k, BLOCK=block, GIVEN=ids is not None, PDL=launch.dependent,
        **launch.options(min(8, max(1, block // 512))),
    )  # fmt: skip
