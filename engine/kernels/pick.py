"""The end of a greedy step in one block: best id, stop check, slot moved on, next embedding, keys cleared.

Reads 2 K bytes of embedding and 8 KEYS of keys.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.embed import embed_row
from engine.kernels.head import KEYS, NO_KEY
from engine.kernels.launch import Launch, begin
from engine.kernels.ops import SlotTable


@triton.jit
def _pick(
    keys, active, token, position, stopped, stop_ids, picked, embedding, x, rounded,
    STOPS: tl.constexpr, STOPS_BLOCK: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    SLOTS: tl.constexpr, EMPTY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    places = tl.arange(0, SLOTS)
    best = tl.max(tl.load(keys + places), axis=0)
    slot = tl.load(active)
    old_token = tl.load(token + slot)
    old_position = tl.load(position + slot)
    was_stopped = tl.load(stopped + slot) != 0
    stop_places = tl.arange(0, STOPS_BLOCK)
    ends = tl.load(stop_ids + slot * STOPS + stop_places, mask=stop_places < STOPS, other=-1)

    tl.debug_barrier()  # every warp has read before one writes

    chosen = 0x7FFFFFFF - (best & 0xFFFFFFFF)
    next_token = tl.where(was_stopped, old_token, chosen)
    embed_row(embedding, next_token, x, rounded, K, BLOCK)
    hit = tl.max((ends == chosen).to(tl.int32), axis=0) != 0
    tl.store(picked, chosen)
    tl.store(token + slot, next_token)
    tl.store(position + slot, tl.where(was_stopped, old_position, old_position + 1))
    tl.store(stopped + slot, was_stopped | hit)
    tl.store(keys + places, tl.full((SLOTS,), EMPTY, tl.int64))


def pick(
    keys: torch.Tensor,
    table: SlotTable,
    stop_ids: torch.Tensor,
    picked: torch.Tensor,
    embedding: torch.Tensor,
    x: torch.Tensor,
    rounded: torch.Tensor,
    launch: Launch,
) -> None:
    """keys `[KEYS]` int64 as `head` left them, stop_ids `[S, E]` int64 padded with -1, picked `[1]` int64: the best id.

    token and position of the active slot move on unless it has stopped; x, rounded `[1, K]` = embedding of its token.
    """
    k, stops = embedding.shape[1], stop_ids.shape[1]
    block = triton.next_power_of_2(k)
    stopped = table.stopped.view(torch.int8) if table.stopped.dtype is torch.bool else table.stopped
    _pick[(1,)](
        keys, table.active, table.token, table.position, stopped, stop_ids, picked, embedding, x, rounded,
        STOPS=stops, STOPS_BLOCK=triton.next_power_of_2(stops), K=k, BLOCK=block,
        SLOTS=KEYS, EMPTY=NO_KEY, PDL=launch.dependent,
        **launch.options(min(8, max(1, block // 512))),
    )  # fmt: skip
