"""The choice of the next token: a pure function of (logits, parameters, seed, absolute position).

Nothing is carried from token to token but counts. Randomness is Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed, counted by position and vocabulary block, and used as Gumbel
noise: the largest of (scaled logit + noise) is a draw from the softmax. The mass for top-p is summed in 40-bit fixed
point, where sums do not depend on their order. So the choice is the same on every run, with or without a graph, alone
or beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from engine.kernels.ops import SlotTable
from engine.params import MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS, SamplingParams

_MASS_UNIT = float(2**40)
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

    numbers `[S, 7]` float32: 1/temperature (1 when greedy), noise scale (0 when greedy), top_p, min_p, then the
    repetition, presence and frequency penalties.
    integers `[S, 2]` int64: seed bits, top_k (V when off).
    stop_ids `[S, 32 + ends]` int64, padded with -1.
    counts `[S, V]` int32: how often the answer holds an id. seen `[S, V]` bool: prompt or answer holds it.
    bias `[S, V]` float32. blocks `[ceil(V / 4)]` int64: 0, 1, 2, ..., the counter of the generator.
    """

    numbers: torch.Tensor
    integers: torch.Tensor
    stop_ids: torch.Tensor
    counts: torch.Tensor
    seen: torch.Tensor
    bias: torch.Tensor
    blocks: torch.Tensor

    @classmethod
    def allocate(cls, slots: int, vocabulary: int, ends: int, device: torch.device) -> SamplerTable:
        """A table of greedy turns without adjustments; `ends` is how many end tokens the model has."""
        neutral = torch.tensor((1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0), dtype=torch.float32, device=device)
        off = torch.tensor((0, vocabulary), dtype=torch.int64, device=device)
        return cls(
            numbers=neutral.repeat(slots, 1),
            integers=off.repeat(slots, 1),
            stop_ids=torch.full((slots, MAX_STOP_TOKEN_IDS + ends), -1, dtype=torch.int64, device=device),
            counts=torch.zeros(slots, vocabulary, dtype=torch.int32, device=device),
            seen=torch.zeros(slots, vocabulary, dtype=torch.bool, device=device),
            bias=torch.zeros(slots, vocabulary, dtype=torch.float32, device=device),
            blocks=torch.arange((vocabulary + 3) // 4, dtype=torch.int64, device=device),
        )

    def write(self, slot: int, params: SamplingParams, prompt_ids: Sequence[int], end_ids: Sequence[int]) -> None:
        """Set one slot up for a turn."""
        device = self.numbers.device
        temperature = 1.0 if params.greedy else params.temperature
        numbers = (
            1.0 / temperature,
            0.0 if params.greedy else 1.0,
            params.top_p,
            params.min_p,
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
        self.seen[slot].index_fill_(0, torch.tensor(prompt_ids, dtype=torch.int64, device=device), True)
        self.bias[slot].zero_()
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
    """Standard Gumbel noise, float32, of 32-bit words: the top 24 bits make a uniform in (0, 1)."""
    uniform = ((bits >> 8).to(torch.float32) + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform))


def truncation_threshold(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest scaled logit that top-k, then top-p among those left, keep; ties are kept.

    scaled `[V]` float32, top_k `[1]` int64, top_p `[1]` float32. Returns `[1]` float32.
    """
    ordered = torch.sort(scaled, descending=True).values
    kth = ordered.gather(0, top_k - 1)
    mass = (torch.exp((ordered - ordered[:1]).double()) * _MASS_UNIT).to(torch.int64)
    mass = torch.where(ordered >= kth, mass, 0)
    before = torch.cumsum(mass, 0) - mass
    kept = before.double() < top_p.double() * mass.sum().double()
    last = (kept.sum() - 1).clamp_(min=0).view(1)
    return torch.maximum(kth, ordered.gather(0, last))


def choose(logits: torch.Tensor, stages: Stages, slots: SlotTable, sampler: SamplerTable, choice: Choice) -> None:
    """Choose from logits `[V]` float32 for the active slot, write `choice`, and move the slot on by one token.

    A slot that has stopped is left as it is.
    """
    active = slots.active
    picked = _pick(logits, stages, slots, sampler)
    choice.token_id.copy_(picked)
    if stages is Stages.LOGPROBS:
        logprobs = torch.log_softmax(logits, dim=-1)
        choice.logprob.copy_(logprobs.gather(0, picked))
        top = torch.topk(logprobs, min(MAX_TOP_LOGPROBS, logits.shape[0]))
        choice.top_logprobs[: top.values.shape[0]].copy_(top.values)
        choice.top_ids[: top.indices.shape[0]].copy_(top.indices)

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
    inverse_temperature, noise_scale, top_p, min_p, repetition, presence, frequency = numbers.split(1)
    seed, top_k = sampler.integers.index_select(0, active)[0].split(1)

    counts = sampler.counts.index_select(0, active)[0]
    seen = sampler.seen.index_select(0, active)[0]
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    adjusted = torch.where(seen, penalised, logits)
    adjusted = adjusted - counts * frequency - (counts > 0) * presence
    adjusted = adjusted + sampler.bias.index_select(0, active)[0]
    scaled = adjusted * inverse_temperature

    largest = scaled.max()
    keep = scaled >= largest + torch.log(min_p)  # log(0) is -inf: everything stays
    if stages is not Stages.SAMPLED:
        keep &= scaled >= truncation_threshold(scaled, top_k, top_p)
    position = slots.position.index_select(0, active) + 1
    noise = gumbel(philox4x32(sampler.blocks, position, seed))[: logits.shape[0]]
    noisy = torch.where(keep, scaled + noise * noise_scale, float("-inf"))
    return noisy.argmax(dim=-1, keepdim=True)
