"""The choice of the next token: a pure function of (logits, parameters, seed, absolute position).

Nothing is carried from token to token but counts. Randomness is Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed, counted by position and vocabulary block, and used as Gumbel
noise: the largest of (scaled logit + noise) is a draw from the softmax. Top-k and top-p look at the gap between each
scaled logit and the largest, in fixed point, and the mass for top-p is a sum of integers, which does not depend on its
order. Logarithm and exponential are made of single float32 products and sums, since no two libraries round them alike.
So the choice is the same on every run and device, with or without a graph, alone or beside others.
`engine.kernels.choose` is the same in Triton, id for id.

The file is longer than others because it is read as one function: every stage of a choice, in order, with the integer
arithmetic that each of them needs to be exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from engine.kernels.logprobs import write_logprobs
from engine.kernels.ops import SlotTable
from engine.params import MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS, SamplingParams

# Gaps are whole multiples of 2**-19 nats, the step of a float32 logit near 16, up to 32 nats. Noise lies between -2.9
# and 22.9, so an id 32 nats below the largest is never chosen, and all of those may count as equal.
_GAP_UNITS = float(2**19)
FARTHEST_GAP = 2**24 - 1
_OCTAVES_PER_GAP = 2.7517223770701094e-06  # 2**-19 / ln 2, in float32
_EXP2 = (  # 2**-f for f in [0, 1], from the constant upwards: relative error below 2e-7
    1.0,
    -0.6931470632553101,
    0.24022436141967773,
    -0.05549076199531555,
    0.009579186327755451,
    -0.0012747551081702113,
    0.00010902568465098739,
)
_LOG = (  # Cephes' logf: log(1 + f) = f - f**2 / 2 + f**3 * polynomial, highest power first
    0.070376836292,
    -0.1151461031,
    0.116769987,
    -0.12420140846,
    0.14249322787,
    -0.16668057665,
    0.20000714765,
    -0.24999993993,
    0.33333331174,
)
_SQRT_HALF_BITS = 0x3F3504F3
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOW32 = 0xFFFFFFFF
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


class Stages(StrEnum):
    """How much of the sampler a step runs. Graphs are captured for each; a turn takes the least that serves it."""

    GREEDY = "greedy"
    SAMPLED = "sampled"  # penalties, bias, temperature, min_p, noise
    TRUNCATED = "truncated"  # and top-k, top-p
    LOGPROBS = "logprobs"  # everything, and log-probabilities

    @classmethod
    def of(cls, params: SamplingParams) -> Stages:
        """The least that serves `params`."""
        if params.logprobs:
            return cls.LOGPROBS
        if params.greedy:
            return cls.SAMPLED if params.adjusts_logits else cls.GREEDY
        return cls.TRUNCATED if params.top_k or params.top_p < 1.0 else cls.SAMPLED


@dataclass(frozen=True, slots=True)
class SamplerTable:
    """Parameters and counts of each slot's turn, on the device; S slots, V ids.

    numbers `[S, 7]` float32: 1/temperature (1 when greedy), noise scale (0 when greedy), top_p, -log(min_p), which is
    the widest gap that min_p keeps, then the repetition, presence and frequency penalties.
    integers `[S, 2]` int64: seed bits, top_k (V when off).
    stop_ids `[S, 32 + ends]` int64, padded with -1.
    counts `[S, V]` int32: how often the answer holds an id. seen `[S, V]` bool: prompt or answer holds it.
    bias `[S, V]` float32.
    allowed `[S, ceil(V / 32)]` int32: bit i % 32 of word i // 32 is set where id i may be chosen; all are where the
    answer is free. bits `[32]` int32: 0, 1, 2, ..., 31.
    blocks `[ceil(V / 4)]` int64: 0, 1, 2, ..., the counter of the generator.
    """

    numbers: torch.Tensor
    integers: torch.Tensor
    stop_ids: torch.Tensor
    counts: torch.Tensor
    seen: torch.Tensor
    bias: torch.Tensor
    allowed: torch.Tensor
    bits: torch.Tensor
    blocks: torch.Tensor

    @classmethod
    def allocate(cls, slots: int, vocabulary: int, ends: int, device: torch.device) -> SamplerTable:
        """A table of greedy turns without adjustments; `ends` is how many end tokens the model has."""
        neutral = torch.tensor((1.0, 0.0, 1.0, math.inf, 1.0, 0.0, 0.0), dtype=torch.float32, device=device)
        off = torch.tensor((0, vocabulary), dtype=torch.int64, device=device)
        return cls(
            numbers=neutral.repeat(slots, 1),
            integers=off.repeat(slots, 1),
            stop_ids=torch.full((slots, MAX_STOP_TOKEN_IDS + ends), -1, dtype=torch.int64, device=device),
            counts=torch.zeros(slots, vocabulary, dtype=torch.int32, device=device),
            seen=torch.zeros(slots, vocabulary, dtype=torch.bool, device=device),
            bias=torch.zeros(slots, vocabulary, dtype=torch.float32, device=device),
            allowed=torch.full((slots, (vocabulary + 31) // 32), -1, dtype=torch.int32, device=device),
            bits=torch.arange(32, dtype=torch.int32, device=device),
            blocks=torch.arange((vocabulary + 3) // 4, dtype=torch.int64, device=device),
        )

    def write(
        self,
        slot: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        end_ids: Sequence[int],
        answered: Sequence[int] = (),
    ) -> None:
        """Set one slot up for a turn whose answer already holds the ids `answered`."""
        device = self.numbers.device
        temperature = 1.0 if params.greedy else params.temperature
        numbers = (
            1.0 / temperature,
            0.0 if params.greedy else 1.0,
            params.top_p,
            -math.log(params.min_p) if params.min_p else math.inf,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        vocabulary = self.counts.shape[1]
        top_k = min(params.top_k, vocabulary) if params.top_k else vocabulary
        seed = params.seed - 2**64 if params.seed >= 2**63 else params.seed
        stop_ids = sorted({*end_ids, *params.stop_token_ids})
        padded = stop_ids + [-1] * (self.stop_ids.shape[1] - len(stop_ids))
        self.numbers[slot].copy_(torch.tensor(numbers, dtype=torch.float32))
        self.integers[slot].copy_(torch.tensor((seed, top_k), dtype=torch.int64))
        self.stop_ids[slot].copy_(torch.tensor(padded, dtype=torch.int64))
        if Stages.of(params) is Stages.GREEDY:
            return  # this stage reads no counts
        self.counts[slot].zero_()
        self.seen[slot].zero_()
        read = torch.tensor([*prompt_ids, *answered], dtype=torch.int64, device=device)
        self.seen[slot].index_fill_(0, read, True)
        if answered:
            said = read[len(prompt_ids) :]
            self.counts[slot].index_add_(0, said, torch.ones_like(said, dtype=torch.int32))
        self.bias[slot].zero_()
        self.allowed[slot].fill_(-1)
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=device)
            self.bias[slot].index_copy_(0, ids, torch.tensor(list(params.logit_bias.values()), device=device))


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a step leaves its result, on the device.

    token_id `[1]` int64. logprob `[1]`, top_logprobs `[20]` float32, top_ids `[20]` int64: written by LOGPROBS only.
    """

    token_id: torch.Tensor
    logprob: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor

    @classmethod
    def allocate(cls, device: torch.device, *, pinned: bool = False) -> Choice:
        """Empty results on a device, or their pinned counterpart on the host."""
        return cls(
            token_id=torch.zeros(1, dtype=torch.int64, device=device, pin_memory=pinned),
            logprob=torch.zeros(1, dtype=torch.float32, device=device, pin_memory=pinned),
            top_ids=torch.zeros(MAX_TOP_LOGPROBS, dtype=torch.int64, device=device, pin_memory=pinned),
            top_logprobs=torch.zeros(MAX_TOP_LOGPROBS, dtype=torch.float32, device=device, pin_memory=pinned),
        )


def philox4x32(blocks: torch.Tensor, position: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """32 random bits for each vocabulary id: word j of block b belongs to id 4 b + j.

    blocks `[n]` int64, position `[1]` int64, seed `[1]` int64 (64 bits). Returns `[4 n]` int64 in [0, 2**32).
    """
    c0, c1 = blocks, (position & _LOW32).expand_as(blocks)
    c2, c3 = ((position >> 32) & _LOW32).expand_as(blocks), torch.zeros_like(blocks)
    k0, k1 = seed & _LOW32, (seed >> 32) & _LOW32
    for _ in range(_PHILOX_ROUNDS):
        p0, p1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW32) ^ c1 ^ k0,
            p1 & _LOW32,
            ((p0 >> 32) & _LOW32) ^ c3 ^ k1,
            p0 & _LOW32,
        )
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _LOW32, (k1 + _PHILOX_WEYL[1]) & _LOW32
    return torch.stack((c0, c1, c2, c3), dim=-1).view(-1)


def gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, of 32-bit words `[n]` int64.

    It is -log(-log(1 - v)). A word makes v in [2**-33, 1 - 2**-24], with more digits the nearer it is to 0, where the
    large noise comes from.
    """
    v = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
    exponential = -_log(1.0 - v, -v)
    return -_log(exponential, exponential - 1.0)


def _log(x: torch.Tensor, less_one: torch.Tensor) -> torch.Tensor:
    """log(x) float32 of normal numbers x > 0; `less_one` is x - 1, with all its digits where x is near 1.

    Each operation rounds once, so the result is the same on every device. Within 2 units in the last place.
    """
    bits = x.view(torch.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = torch.where(exponent == 0, less_one, (bits - (exponent << 23)).view(torch.float32) - 1.0)
    square = f * f
    tail = f * _LOG[0] + _LOG[1]
    for coefficient in _LOG[2:]:
        tail = tail * f + coefficient
    power = exponent.to(torch.float32)
    tail = (tail * f) * square + power * _LN2_LOW - square * 0.5
    return (f + tail) + power * _LN2_HIGH


def fixed_gap(gap: torch.Tensor) -> torch.Tensor:
    """Gaps below the largest scaled logit, float32 in nats, as int32 multiples of 2**-19, at most FARTHEST_GAP."""
    return (gap * _GAP_UNITS).clamp_(max=float(FARTHEST_GAP)).to(torch.int32)


def gap_mass(gaps: torch.Tensor) -> torch.Tensor:
    """exp(-gap) of fixed-point gaps, as int64 multiples of 2**-40."""
    octaves = gaps.to(torch.float32) * _OCTAVES_PER_GAP
    whole = octaves.to(torch.int32)
    f = octaves - whole.to(torch.float32)
    power = f * _EXP2[-1] + _EXP2[-2]
    for coefficient in _EXP2[-3::-1]:
        power = power * f + coefficient
    return ((power * 2.0**24).to(torch.int64) << 16) >> whole.to(torch.int64)


def widest_gap(gaps: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The widest fixed-point gap that top-k, then top-p among those left, keep; ties are kept.

    gaps `[V]` int32, top_k `[1]` int64, top_p `[1]` float32. Returns `[1]` int32.
    """
    ordered = torch.sort(gaps).values
    kth = ordered.gather(0, top_k - 1)
    mass = torch.cumsum(torch.where(ordered <= kth, gap_mass(ordered), 0), 0)
    target = torch.ceil(top_p.double() * mass[-1:].double()).to(torch.int64)
    nucleus = ordered.gather(0, (mass < target).sum().clamp_(max=mass.shape[0] - 1).view(1))
    return torch.where(top_p < 1.0, nucleus, kth)


def choose(logits: torch.Tensor, stages: Stages, slots: SlotTable, sampler: SamplerTable, choice: Choice) -> None:
    """Choose from logits `[V]` float32 for the active slot, write `choice`, and move the slot on by one token.

    A slot that has stopped is left as it is.
    """
    active = slots.active
    picked = _pick(logits, stages, slots, sampler)
    choice.token_id.copy_(picked)
    if stages is Stages.LOGPROBS:
        write_logprobs(logits, picked, choice.logprob, choice.top_ids, choice.top_logprobs)

    stopped = slots.stopped.index_select(0, active)
    going = ~stopped
    if stages is not Stages.GREEDY:
        sampler.counts.index_put_((active, picked), going.to(torch.int32), accumulate=True)
        sampler.seen.index_put_((active, picked), going | sampler.seen[active, picked])
    ends = (sampler.stop_ids.index_select(0, active) == picked).any(dim=1)
    slots.token.index_copy_(0, active, torch.where(going, picked, slots.token.index_select(0, active)))
    slots.position.index_add_(0, active, going.to(torch.int64))
    slots.stopped.index_copy_(0, active, stopped | ends)


def _pick(logits: torch.Tensor, stages: Stages, slots: SlotTable, sampler: SamplerTable) -> torch.Tensor:
    """The chosen id, `[1]` int64. Of equal candidates the lowest id wins."""
    if stages is Stages.GREEDY:
        return logits.argmax(dim=-1, keepdim=True)
    active = slots.active
    numbers = sampler.numbers.index_select(0, active)[0]
    inverse_temperature, noise_scale, top_p, min_p_gap, repetition, presence, frequency = numbers.split(1)
    seed, top_k = sampler.integers.index_select(0, active)[0].split(1)

    counts = sampler.counts.index_select(0, active)[0]
    seen = sampler.seen.index_select(0, active)[0]
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    adjusted = torch.where(seen, penalised, logits)
    adjusted = adjusted - counts * frequency - (counts > 0) * presence
    adjusted = adjusted + sampler.bias.index_select(0, active)[0]
    allowed = (sampler.allowed.index_select(0, active).view(-1, 1) >> sampler.bits & 1).view(-1)[: logits.shape[0]]
    scaled = torch.where(allowed != 0, adjusted * inverse_temperature, float("-inf"))

    gap = scaled.max() - scaled
    keep = gap <= min_p_gap
    if stages is not Stages.SAMPLED:
        gaps = fixed_gap(gap)
        keep &= gaps <= widest_gap(gaps, top_k, top_p)
    position = slots.position.index_select(0, active) + 1
    noise = gumbel(philox4x32(sampler.blocks, position, seed))[: logits.shape[0]]
    noisy = torch.where(keep, scaled + noise * noise_scale, float("-inf"))
    return noisy.argmax(dim=-1, keepdim=True)
