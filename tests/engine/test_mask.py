"""Masks in the sampler: what is not allowed is never chosen, and no mask outlives its turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels.ops import SlotTable
from engine.params import SamplingParams
from engine.sampler import Choice, SamplerTable, Stages, choose

VOCABULARY = 515  # a last word of which three bits count
CPU = torch.device("cpu")


class Bench:
    """Two slots, of which the second is active."""

    def __init__(self) -> None:
        self.slots = SlotTable(
            active=torch.tensor([1]),
            token=torch.zeros(2, dtype=torch.int64),
            position=torch.zeros(2, dtype=torch.int64),
            stopped=torch.zeros(2, dtype=torch.bool),
        )
        self.sampler = SamplerTable.allocate(2, VOCABULARY, 1, CPU)
        self.choice = Choice.allocate(CPU)

    def pick(self, logits: torch.Tensor, params: SamplingParams, position: int, allowed: torch.Tensor | None) -> int:
        self.sampler.write(1, params, (3,), [2])
        if allowed is not None:
            self.sampler.allowed[1] = allowed
        self.slots.position[1] = position
        self.slots.stopped[1] = False
        choose(logits, _masking(params), self.slots, self.sampler, self.choice)
        return int(self.choice.token_id)


def _masking(params: SamplingParams) -> Stages:
    """The stages of a turn with a grammar."""
    stages = Stages.of(params)
    return Stages.SAMPLED if stages is Stages.GREEDY else stages


def _words(ids: set[int]) -> torch.Tensor:
    words = torch.zeros((VOCABULARY + 31) // 32, dtype=torch.int64)
    for token_id in ids:
        words[token_id // 32] |= 1 << (token_id % 32)
    return words.to(torch.int32)


PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 2},
    {"temperature": 1.0, "top_p": 0.4},
    {"temperature": 1.0, "min_p": 0.3},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.2, "logprobs": True},
]


@pytest.mark.parametrize("wishes", PARAMS)
def test_a_mask_is_as_if_the_other_ids_did_not_exist(wishes: dict[str, Any]) -> None:
    bench, ids = Bench(), {0, 1, 31, 32, 100, 301, 511, 514}
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(9)) * 2
    alone = torch.full((VOCABULARY,), -1e30)
    alone[list(ids)] = logits[list(ids)]
    for position in range(60):
        params = SamplingParams(**wishes, seed=8)
        masked = bench.pick(logits, params, position, _words(ids))
        assert masked in ids
        assert masked == bench.pick(alone, params, position, None)


def test_the_largest_allowed_logit_wins_a_greedy_turn() -> None:
    bench = Bench()
    logits = torch.arange(VOCABULARY, dtype=torch.float32)
    assert bench.pick(logits, SamplingParams(), 0, _words({5, 77, 33})) == 77


def test_the_next_turn_of_a_slot_is_free() -> None:
    bench = Bench()
    logits = torch.arange(VOCABULARY, dtype=torch.float32)
    bench.pick(logits, SamplingParams(temperature=1e-3), 0, _words({5}))
    assert bench.pick(logits, SamplingParams(temperature=1e-3), 0, None) == VOCABULARY - 1


def test_a_mask_of_one_slot_is_not_the_others() -> None:
    bench = Bench()
    bench.sampler.allowed[0] = _words({5})
    logits = torch.arange(VOCABULARY, dtype=torch.float32)
    assert bench.pick(logits, SamplingParams(temperature=1e-3), 0, None) == VOCABULARY - 1
    assert torch.equal(bench.sampler.allowed[0], _words({5}))


def test_logprobs_stay_those_of_the_model() -> None:
    bench = Bench()
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1))
    bench.pick(logits, SamplingParams(temperature=1.0, logprobs=True, top_logprobs=3), 0, _words({7}))
    assert float(bench.choice.logprob) == pytest.approx(float(torch.log_softmax(logits, 0)[7]), abs=1e-5)
