"""The sampler of a step: penalties, bias, temperature, top-k, top-p, min-p, noise, the choice and its consequences.

The twin is `engine.sampler.choose`; ids are equal to its own, since both do the same single operations. Which of a
turn's wishes are on is data, so one captured graph serves them all. Kernels by stage, each of one pass over V ids:

    greedy      candidates, advance
    sampled     adjust, candidates, advance
    truncated   adjust, the three of `truncate`, candidates, advance

Bytes: adjust reads 13 V, and a bit for each id, and writes 4 V, candidates reads 4 V and advance 2 W of embedding.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from engine.kernels.embed import embed_row
from engine.kernels.launch import Launch, allow_next, begin, wait_previous
from engine.kernels.logprobs import write_logprobs
from engine.kernels.noise import gumbel
from engine.kernels.truncate import (
    BLOCK,
    FREQUENCY,
    INTEGERS,
    INVERSE_TEMPERATURE,
    MIN_P_GAP,
    NOISE,
    NUMBERS,
    PRESENCE,
    REPETITION,
    SEED,
    TOP_K,
    TOP_P,
    WARPS,
    Truncation,
    fixed_gaps,
    largest_of,
    widest_gap,
)

if TYPE_CHECKING:
    from engine.kernels.ops import SlotTable
    from engine.sampler import Choice, SamplerTable, Stages


@triton.jit
def _adjust(
    logits, active, counts, seen, bias, allowed, numbers, scaled, maxima, histograms,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CLEARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    valid = ids < V
    begin(PDL)
    slot = tl.load(active)
    row = slot * V
    logit = tl.load(logits + ids, mask=valid, other=float("-inf"))
    count = tl.load(counts + row + ids, mask=valid, other=0)
    known = tl.load(seen + row + ids, mask=valid, other=0) != 0
    offset = tl.load(bias + row + ids, mask=valid, other=0.0)
    word = tl.load(allowed + slot * ((V + 31) // 32) + ids // 32, mask=valid, other=0)
    wishes = numbers + slot * NUMBERS
    repetition = tl.load(wishes + REPETITION)
    penalised = tl.where(logit > 0, tl.div_rn(logit, tl.broadcast_to(repetition, (BLOCK,))), logit * repetition)
    adjusted = tl.where(known, penalised, logit)
    adjusted = adjusted - count.to(tl.float32) * tl.load(wishes + FREQUENCY)
    adjusted = adjusted - tl.where(count > 0, tl.load(wishes + PRESENCE), 0.0)
    adjusted = (adjusted + offset) * tl.load(wishes + INVERSE_TEMPERATURE)
    adjusted = tl.where(((word >> (ids % 32)) & 1) != 0, adjusted, float("-inf"))
    tl.store(scaled + ids, adjusted, mask=valid)
    tl.store(maxima + block, tl.max(tl.where(valid, adjusted, float("-inf")), axis=0))
    # The step before this one is the last that read the histograms, the next kernel the first that adds to them.
    for turn in tl.static_range((CLEARED + BLOCKS * BLOCK - 1) // (BLOCKS * BLOCK)):
        places = (turn * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        tl.store(histograms + places, tl.zeros((BLOCK,), tl.int64), mask=places < CLEARED)


@triton.jit
def _candidates(
    scaled, maxima, active, position, numbers, integers, histograms, state, best,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
    ADJUSTED: tl.constexpr, TRUNCATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best id of each block, as the value's bits made sortable above the complement of the id."""
    block = tl.program_id(0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    valid = ids < V
    if ADJUSTED:
        # The table was written before `adjust`, which this kernel's predecessor has waited for.
        allow_next(PDL)
        slot = tl.load(active)
        wishes = numbers + slot * NUMBERS
        top_k = tl.load(integers + slot * INTEGERS + TOP_K)
        seed = tl.load(integers + slot * INTEGERS + SEED)
        blocks_of_four = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        noise = gumbel(seed, tl.load(position + slot) + 1, blocks_of_four) * tl.load(wishes + NOISE)
        wait_previous(PDL)
        gaps, gap = fixed_gaps(scaled, ids, valid, largest_of(maxima, BLOCKS, BLOCKS_PADDED))
        kept = valid & (gap <= tl.load(wishes + MIN_P_GAP))
        if TRUNCATED:
            kept &= gaps <= widest_gap(top_k, tl.load(wishes + TOP_P), histograms, state, V)
        value = tl.load(scaled + ids, mask=valid, other=float("-inf")) + noise
    else:
        begin(PDL)
        kept = valid
        value = tl.load(scaled + ids, mask=valid, other=float("-inf"))
    bits = (tl.where(kept, value, float("-inf")) + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    sortable = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    tl.store(best + block, tl.max((sortable << 32) | (0x7FFFFFFF - ids).to(tl.int64), axis=0))


@triton.jit
def _advance(
    best, active, token, position, stopped, stop_ids, counts, seen, picked, embedding, x, rounded,
    V: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
    STOPS: tl.constexpr, STOPS_PADDED: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    COUNTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    blocks = tl.arange(0, BLOCKS_PADDED)
    winner = tl.max(tl.load(best + blocks, mask=blocks < BLOCKS, other=-(2**63)), axis=0)
    chosen = 0x7FFFFFFF - (winner & 0xFFFFFFFF)
    slot = tl.load(active)
    old_token = tl.load(token + slot)
    old_position = tl.load(position + slot)
    was_stopped = tl.load(stopped + slot) != 0
    places = tl.arange(0, STOPS_PADDED)
    ends = tl.load(stop_ids + slot * STOPS + places, mask=places < STOPS, other=-1)
    hit = tl.max((ends == chosen).to(tl.int32), axis=0) != 0
    where = slot * V + chosen
    old_count = 0
    old_seen = 0
    if COUNTED:
        old_count = tl.load(counts + where)
        old_seen = tl.load(seen + where)

    tl.debug_barrier()  # every warp has read before one writes

    if COUNTED:
        tl.store(counts + where, old_count + tl.where(was_stopped, 0, 1))
        tl.store(seen + where, tl.where(was_stopped, old_seen, 1))
    next_token = tl.where(was_stopped, old_token, chosen)
    tl.store(picked, chosen)
    tl.store(token + slot, next_token)
    tl.store(position + slot, tl.where(was_stopped, old_position, old_position + 1))
    tl.store(stopped + slot, was_stopped | hit)
    embed_row(embedding, next_token, x, rounded, WIDTH, WIDTH_PADDED)


class Chooser:
    """The end of a step in a few kernels: choice, bookkeeping, and the chosen id's embedding in x[0].

    Allocates its scratch once; a choice neither allocates (but for LOGPROBS) nor synchronises. One object serves one
    stream at a time.
    """

    def __init__(
        self,
        slots: SlotTable,
        sampler: SamplerTable,
        choice: Choice,
        embedding: torch.Tensor,
        x: torch.Tensor,
        rounded: torch.Tensor | None = None,
    ) -> None:
        """embedding `[V, W]`, x `[R, W]` float32; rounded `[R, W]`: where x[0] is kept in another type, if it is."""
        device = x.device
        self._vocabulary, self._width = embedding.shape
        self._slots, self._sampler, self._choice = slots, sampler, choice
        self._embedding, self._x, self._rounded = embedding, x, x if rounded is None else rounded
        self._blocks = triton.cdiv(self._vocabulary, BLOCK)
        self._launch = Launch.on(device)
        self._scaled = torch.zeros(self._vocabulary, dtype=torch.float32, device=device)
        self._maxima = torch.zeros(self._blocks, dtype=torch.float32, device=device)
        self._best = torch.zeros(self._blocks, dtype=torch.int64, device=device)
        self._truncation = Truncation(device)

    def choose(self, logits: torch.Tensor, stages: Stages) -> None:
        """Choose from logits `[V]` float32 for the active slot, write the choice, and move the slot on by one token.

        x[0] becomes the embedding of the slot's token. A slot that has stopped is left as it is. No logit
        may be NaN.
        """
        adjusted = stages != "greedy"
        truncated = stages in ("truncated", "logprobs")
        if adjusted:
            self._adjust(logits, truncated=truncated)
        if truncated:
            slots, sampler = self._slots, self._sampler
            self._truncation.find(
                self._scaled, self._maxima, slots.active, sampler.numbers, sampler.integers, self._launch
            )
        self._candidates(self._scaled if adjusted else logits, adjusted=adjusted, truncated=truncated)
        self._advance(counted=adjusted)
        if stages == "logprobs":
            choice = self._choice
            write_logprobs(logits, choice.token_id, choice.logprob, choice.top_ids, choice.top_logprobs)

    def _adjust(self, logits: torch.Tensor, *, truncated: bool) -> None:
        sampler = self._sampler
        _adjust[(self._blocks,)](
            logits, self._slots.active, sampler.counts, sampler.seen.view(torch.int8), sampler.bias, sampler.allowed,
            sampler.numbers, self._scaled, self._maxima, self._truncation.histograms,
            V=self._vocabulary, BLOCK=BLOCK, BLOCKS=self._blocks,
            CLEARED=self._truncation.histograms.numel() if truncated else 0, PDL=self._launch.dependent,
            **self._launch.options(WARPS),
        )  # fmt: skip

    def _candidates(self, values: torch.Tensor, *, adjusted: bool, truncated: bool) -> None:
        slots, sampler = self._slots, self._sampler
        _candidates[(self._blocks,)](
            values, self._maxima, slots.active, slots.position, sampler.numbers, sampler.integers,
            self._truncation.histograms, self._truncation.state, self._best,
            V=self._vocabulary, BLOCK=BLOCK, BLOCKS=self._blocks, BLOCKS_PADDED=triton.next_power_of_2(self._blocks),
            ADJUSTED=adjusted, TRUNCATED=truncated, PDL=self._launch.dependent, **self._launch.options(WARPS),
        )  # fmt: skip

    def _advance(self, *, counted: bool) -> None:
        slots, sampler = self._slots, self._sampler
        stops, padded = sampler.stop_ids.shape[1], triton.next_power_of_2(self._width)
        _advance[(1,)](
            self._best, slots.active, slots.token, slots.position, slots.stopped.view(torch.int8), sampler.stop_ids,
            sampler.counts, sampler.seen.view(torch.int8), self._choice.token_id,
            self._embedding, self._x, self._rounded,
            V=self._vocabulary, BLOCKS=self._blocks, BLOCKS_PADDED=triton.next_power_of_2(self._blocks),
            STOPS=stops, STOPS_PADDED=triton.next_power_of_2(stops), WIDTH=self._width, WIDTH_PADDED=padded,
            COUNTED=counted, PDL=self._launch.dependent, **self._launch.options(min(8, max(1, padded // 512))),
        )  # fmt: skip
