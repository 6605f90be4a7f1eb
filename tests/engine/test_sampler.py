"""The sampler against plain definitions, and its purity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from engine.kernels.ops import SlotTable
from engine.params import SamplingParams
from engine.sampler import Choice, SamplerTable, Stages, choose, fixed_gap, gap_mass, gumbel, philox4x32, widest_gap

CPU = torch.device("cpu")
VOCABULARY = 515  # not a multiple of four


class Bench:
    """A slot table, a sampler table and a place for the choice, with two slots."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        self.slots = SlotTable(
            active=torch.tensor([1]),
            token=torch.zeros(2, dtype=torch.int64),
            position=torch.zeros(2, dtype=torch.int64),
            stopped=torch.zeros(2, dtype=torch.bool),
        )
        self.sampler = SamplerTable.allocate(2, vocabulary, 1, CPU)
        self.choice = Choice.allocate(CPU)

    def pick(
        self,
        logits: torch.Tensor,
        params: SamplingParams,
        position: int = 7,
        prompt: tuple[int, ...] = (3,),
        stages: Stages | None = None,
    ) -> int:
        self.sampler.write(1, params, prompt, [2])
        self.slots.position[1] = position
        self.slots.stopped[1] = False
        choose(logits, stages or Stages.of(params), self.slots, self.sampler, self.choice)
        return int(self.choice.token_id)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(5)) * 3


def test_philox_matches_the_published_vectors() -> None:
    """Known answers of Random123's kat_vectors for philox4x32-10."""
    zero = philox4x32(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    assert [f"{word:08x}" for word in zero.tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_noise_is_the_double_logarithm_and_always_finite() -> None:
    edges = torch.tensor([0, 1, 2, 2**31, 2**32 - 2**8, 2**32 - 2, 2**32 - 1])
    bits = torch.cat((edges, torch.randint(0, 2**32, (100_000,), generator=torch.Generator().manual_seed(1))))
    uniform = ((bits.float() + 0.5) / 2**32).clamp(max=1 - 2.0**-24)  # rounded as the noise rounds it
    expected = -torch.log(-torch.log1p(-uniform.double()))
    noise = gumbel(bits)
    assert float((noise.double() - expected).abs().max()) < 5e-6
    assert float(noise.min()) > -2.9
    assert float(noise.max()) < 22.9


def test_mass_is_the_exponential_of_the_gap() -> None:
    gaps = torch.arange(0, 32, 0.0037)
    fixed = fixed_gap(gaps)
    mass = gap_mass(fixed).double() / 2**40
    assert float((mass - torch.exp(-fixed.double() / 2**19)).abs().max()) < 1e-6
    assert int(gap_mass(torch.tensor([0], dtype=torch.int32))) == 2**40
    assert int(gap_mass(fixed_gap(torch.tensor([float("inf")])))) == 0


def test_greedy_takes_the_largest_and_moves_the_slot_on(bench: Bench, logits: torch.Tensor) -> None:
    assert bench.pick(logits, SamplingParams()) == int(logits.argmax())
    assert int(bench.slots.position[1]) == 8
    assert int(bench.slots.token[1]) == int(logits.argmax())


def test_every_stage_agrees_on_a_greedy_turn(bench: Bench, logits: torch.Tensor) -> None:
    assert {bench.pick(logits, SamplingParams(), stages=stages) for stages in Stages} == {int(logits.argmax())}


def test_every_sampling_stage_agrees_on_a_sampled_turn(bench: Bench, logits: torch.Tensor) -> None:
    params = SamplingParams(temperature=0.9, seed=11)
    sampling = (Stages.SAMPLED, Stages.TRUNCATED, Stages.LOGPROBS)
    for position in range(50):
        assert len({bench.pick(logits, params, position, stages=stages) for stages in sampling}) == 1


def test_an_end_token_stops_the_slot_and_further_steps_change_nothing(bench: Bench, logits: torch.Tensor) -> None:
    logits[2] = 100.0
    assert bench.pick(logits, SamplingParams()) == 2
    assert bool(bench.slots.stopped[1])
    before = (int(bench.slots.token[1]), int(bench.slots.position[1]))
    choose(torch.randn(VOCABULARY), Stages.GREEDY, bench.slots, bench.sampler, bench.choice)
    assert (int(bench.slots.token[1]), int(bench.slots.position[1])) == before


def test_stop_token_ids_stop_too(bench: Bench, logits: torch.Tensor) -> None:
    logits[77] = 100.0
    bench.pick(logits, SamplingParams(stop_token_ids=(77,)))
    assert bool(bench.slots.stopped[1])


def test_the_choice_is_a_pure_function_of_seed_and_position(logits: torch.Tensor) -> None:
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (0, 1, 2**64 - 1)]
    first = [[Bench().pick(logits, p, position) for position in range(40)] for p in params]
    again = [[Bench().pick(logits, p, position) for position in reversed(range(40))][::-1] for p in params]
    assert first == again
    assert len({tuple(ids) for ids in first}) == 3


def test_samples_follow_the_softmax() -> None:
    bench = Bench(6)
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -20.0])
    counts = Counter(bench.pick(logits, SamplingParams(temperature=0.7, seed=9), position) for position in range(4000))
    expected = torch.softmax(logits / 0.7, 0)
    for token_id in range(6):
        assert counts[token_id] / 4000 == pytest.approx(float(expected[token_id]), abs=0.025)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-4, 0.01])
@pytest.mark.parametrize("top_p", [1e-6, 1.0])
def test_eng_04_tiny_temperatures_neither_fail_nor_leave_the_softmax(
    bench: Bench, logits: torch.Tensor, temperature: float, top_p: float
) -> None:
    picked = bench.pick(logits * 100, SamplingParams(temperature=temperature, top_p=top_p))
    assert picked == int(logits.argmax())


def allowed_by(logits: torch.Tensor, params: Mapping[str, Any]) -> set[int]:
    """Ids that top-k, then top-p, then min-p keep, by their definitions on a sorted list."""
    probabilities = torch.softmax(logits.double() / params.get("temperature", 1.0), 0)
    order = sorted(range(len(logits)), key=lambda i: -probabilities[i])
    kept = order[: params.get("top_k") or len(order)]
    total = sum(float(probabilities[i]) for i in kept)
    nucleus: list[int] = []
    mass = 0.0
    for index in kept:
        if mass >= params.get("top_p", 1.0) * total:
            break
        nucleus.append(index)
        mass += float(probabilities[index])
    floor = params.get("min_p", 0.0) * float(probabilities.max())
    return {index for index in nucleus if probabilities[index] >= floor}


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.5},
        {"top_p": 0.9, "top_k": 40},
        {"min_p": 0.2},
        {"min_p": 0.05, "top_p": 0.8, "top_k": 12, "temperature": 0.6},
        {"top_k": 2**31 - 1},
    ],
)
def test_truncation_keeps_exactly_the_defined_set(bench: Bench, logits: torch.Tensor, params: dict[str, Any]) -> None:
    allowed = allowed_by(logits, params)
    wanted = SamplingParams(**{"temperature": 1.0, "seed": 3, **params})
    picked = {bench.pick(logits, wanted, position) for position in range(600)}
    assert picked <= allowed
    if len(allowed) <= 8:
        assert picked == allowed


def test_ties_at_the_threshold_are_kept() -> None:
    gaps = torch.tensor([200, 100, 100, 100, 300], dtype=torch.int32)
    assert int(widest_gap(gaps, torch.tensor([2]), torch.tensor([1.0]))) == 100
    assert int(widest_gap(gaps, torch.tensor([5]), torch.tensor([0.3]))) == 100


def test_penalties_and_bias(bench: Bench) -> None:
    logits = torch.zeros(VOCABULARY)
    logits[10], logits[11], logits[12] = 5.0, 4.0, 3.0
    assert bench.pick(logits, SamplingParams(repetition_penalty=2.0), prompt=(10,)) == 11
    assert bench.pick(logits, SamplingParams(logit_bias={12: 9.0})) == 12
    assert bench.pick(logits, SamplingParams(logit_bias={10: -100.0, 11: -100.0})) == 12
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.8)
    bench.sampler.write(1, params, (3,), [2])
    picked = []
    for _ in range(4):
        choose(logits, Stages.SAMPLED, bench.slots, bench.sampler, bench.choice)
        picked.append(int(bench.choice.token_id))
    # 5.0, then 5 - 1.3 = 3.7 < 4.0, then 4 - 1.3 = 2.7 < 3.7, then 3.7 - .8 = 2.9 < 3.0
    assert picked == [10, 11, 10, 12]


def test_negative_logits_are_penalised_away_from_zero(bench: Bench) -> None:
    logits = torch.full((VOCABULARY,), -10.0)
    logits[4], logits[5] = -1.0, -1.5
    assert bench.pick(logits, SamplingParams(repetition_penalty=2.0), prompt=(4,)) == 5


def test_logprobs_are_of_the_models_own_distribution(bench: Bench, logits: torch.Tensor) -> None:
    params = SamplingParams(temperature=0.5, seed=2, logprobs=True, top_logprobs=5, logit_bias={9: 50.0})
    picked = bench.pick(logits, params)
    expected = torch.log_softmax(logits, 0)
    assert picked == 9
    assert float(bench.choice.logprob) == pytest.approx(float(expected[9]), abs=1e-5)
    assert bench.choice.top_ids[:5].tolist() == torch.topk(expected, 5).indices.tolist()


def test_a_neighbours_slot_is_not_touched(bench: Bench, logits: torch.Tensor) -> None:
    bench.pick(logits, SamplingParams(temperature=1.0, presence_penalty=1.0))
    assert int(bench.slots.position[0]) == 0
    assert int(bench.sampler.counts[0].sum()) == 0
    assert not bool(bench.sampler.seen[0].any())
