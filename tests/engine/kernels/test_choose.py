"""The sampler's kernels against their twin: equal ids, equal tables, whatever the scratch held before."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
import torch

from engine.kernels.choose import Chooser
from engine.kernels.ops import SlotTable
from engine.params import SamplingParams
from engine.sampler import Choice, SamplerTable, Stages, choose

WIDTH = 20  # not a power of two
ACTIVE, NEIGHBOUR = 1, 0
END_ID = 2


class Side:
    """One of two equal sets of tables, with two slots."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.slots = SlotTable(
            active=torch.tensor([ACTIVE], device=device),
            token=torch.zeros(2, dtype=torch.int64, device=device),
            position=torch.zeros(2, dtype=torch.int64, device=device),
            stopped=torch.zeros(2, dtype=torch.bool, device=device),
        )
        self.sampler = SamplerTable.allocate(2, vocabulary, 1, device)
        self.choice = Choice.allocate(device)
        self.x = torch.full((2, WIDTH), float("nan"), device=device)

    def begin(self, params: SamplingParams, position: int, prompt: tuple[int, ...]) -> None:
        self.sampler.write(ACTIVE, params, prompt, [END_ID])
        self.slots.position[ACTIVE] = position
        self.slots.token[ACTIVE] = 5
        self.slots.stopped[ACTIVE] = False


class Pair:
    """The kernels beside their twin."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(vocabulary)
        self.device = device
        self.embedding = torch.randn(vocabulary, WIDTH, generator=generator).to(device, torch.bfloat16)
        self.rounded = torch.zeros(1, WIDTH, dtype=torch.bfloat16, device=device)
        self.fast, self.slow = Side(vocabulary, device), Side(vocabulary, device)
        fast = self.fast
        self.chooser = Chooser(fast.slots, fast.sampler, fast.choice, self.embedding, fast.x, self.rounded)
        for buffer in ("_scaled", "_maxima"):
            getattr(self.chooser, buffer).fill_(float("nan"))
        for integers in (self.chooser._best, self.chooser._truncation.histograms, self.chooser._truncation.state):
            integers.fill_(0x7ABBCCDD12345678)

    def begin(self, params: SamplingParams, position: int = 7, prompt: tuple[int, ...] = (3, 4)) -> None:
        for side in (self.fast, self.slow):
            side.begin(params, position, prompt)

    def step(self, logits: torch.Tensor, stages: Stages, graph: torch.cuda.CUDAGraph | None = None) -> int:
        """Both choose, the kernels by replaying `graph` if there is one; everything that they leave must be equal."""
        fast, slow = self.fast, self.slow
        logits = logits.to(self.device)
        if graph is None:
            self.chooser.choose(logits, stages)
        else:
            graph.replay()
        choose(logits, stages, slow.slots, slow.sampler, slow.choice)
        assert int(fast.choice.token_id) == int(slow.choice.token_id)
        for mine, its in ((fast.slots, slow.slots), (fast.sampler, slow.sampler), (fast.choice, slow.choice)):
            for field in fields(mine):
                assert torch.equal(getattr(mine, field.name), getattr(its, field.name)), field.name
        row = self.embedding[int(fast.slots.token[ACTIVE])]
        assert torch.equal(fast.x[0], row.float())
        assert torch.equal(self.rounded[0], row)
        assert bool(fast.x[1].isnan().all())
        return int(fast.choice.token_id)


def drawn(vocabulary: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """`[V]` bool as `[ceil(V / 32)]` int32, a bit an id."""
    padded = torch.zeros((allowed.shape[0] + 31) // 32 * 32, dtype=torch.int64)
    padded[: allowed.shape[0]] = allowed
    return (padded.view(-1, 32) << torch.arange(32)).sum(1).to(torch.int32)


MIXES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.7},
    "biased": {"logit_bias": {7: 3.5, 11: -100.0, 300: 100.0}},
    "sampled": {"temperature": 1.0},
    "hot": {"temperature": 100.0, "top_p": 0.7},
    "cold": {"temperature": 1.01e-4, "top_k": 40, "top_p": 0.9},
    "min_p": {"temperature": 0.9, "min_p": 0.05},
    "min_p one": {"temperature": 0.9, "min_p": 1.0},
    "top_k one": {"temperature": 1.0, "top_k": 1},
    "top_k": {"temperature": 1.0, "top_k": 40},
    "top_k wide": {"temperature": 1.3, "top_k": 500},
    "top_k beyond": {"temperature": 1.0, "top_k": 2**31 - 1, "top_p": 0.99},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_p tiny": {"temperature": 1.0, "top_p": 1e-6},
    "top_p nearly one": {"temperature": 1.0, "top_p": 1.0 - 2.0**-24},
    "both": {"temperature": 1.0, "top_k": 50, "top_p": 0.8},
    "all": {
        "temperature": 1.2, "top_k": 100, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {9: 1.5}, "stop_token_ids": (77, 78),
    },
}  # fmt: skip


@pytest.mark.parametrize("mix", MIXES)
def test_ids_and_tables_equal_the_twins(mix: str, device: torch.device) -> None:
    pair = Pair(515, device)
    params = SamplingParams(**MIXES[mix], seed=2**63 + 12345)
    for state in range(2):
        pair.begin(params, position=2**31 - 2 + state)
        for step in range(3):  # scratch and counts as the step before left them
            pair.step(drawn(515, 10 * state + step), Stages.of(params))


@pytest.mark.parametrize("vocabulary", [33, 1025])
@pytest.mark.parametrize("share", [0.02, 0.5])
@pytest.mark.parametrize("mix", ["sampled", "cold", "min_p", "all"])
def test_a_mask_leaves_the_same_ids(mix: str, share: float, vocabulary: int, device: torch.device) -> None:
    pair = Pair(vocabulary, device)
    wishes = MIXES[mix] | {"logit_bias": {7: 3.5}, "stop_token_ids": ()}
    pair.begin(SamplingParams(**wishes, seed=21))
    generator = torch.Generator().manual_seed(vocabulary)
    for step in range(3):
        allowed = torch.rand(vocabulary, generator=generator) < share
        allowed[int(torch.randint(vocabulary, (1,), generator=generator))] = True
        for side in (pair.fast, pair.slow):
            side.sampler.allowed[ACTIVE] = packed(allowed)
            side.sampler.allowed[NEIGHBOUR] = 0
        assert allowed[pair.step(drawn(vocabulary, step), Stages.of(SamplingParams(**wishes)))]


@pytest.mark.parametrize("only", [0, 31, 32, 514])
@pytest.mark.parametrize("mix", ["sampled", "all"])
def test_a_mask_may_leave_one_id(only: int, mix: str, device: torch.device) -> None:
    pair = Pair(515, device)
    params = SamplingParams(**MIXES[mix], seed=5)
    pair.begin(params)
    for side in (pair.fast, pair.slow):
        side.sampler.allowed[ACTIVE] = packed(torch.arange(515) == only)
    assert pair.step(drawn(515, 1), Stages.of(params)) == only


@pytest.mark.parametrize("vocabulary", [1, 3, 1024, 1025, 5000])
@pytest.mark.parametrize("mix", ["greedy", "sampled", "both"])
def test_odd_vocabularies(vocabulary: int, mix: str, device: torch.device) -> None:
    pair = Pair(vocabulary, device)
    params = SamplingParams(**MIXES[mix], seed=4)
    pair.begin(params, prompt=(0,))
    for step in range(3):
        assert 0 <= pair.step(drawn(vocabulary, step), Stages.of(params)) < vocabulary


@pytest.mark.parametrize("vocabulary", [49152, pytest.param(128256, marks=pytest.mark.slow)])
def test_real_vocabularies(vocabulary: int, device: torch.device) -> None:
    pair = Pair(vocabulary, device)
    params = SamplingParams(**MIXES["all"], seed=99)
    pair.begin(params, prompt=tuple(range(0, vocabulary, 17)))
    pair.step(drawn(vocabulary, 1), Stages.of(params))


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 2**31 - 1, 2**32 - 2, 2**32 - 1, 2**40])
def test_extreme_seeds_and_positions(seed: int, position: int, device: torch.device) -> None:
    pair = Pair(515, device)
    params = SamplingParams(temperature=3.0, seed=seed)
    pair.begin(params, position=position)
    pair.step(drawn(515, 3), Stages.SAMPLED)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(2049),
        torch.full((2049,), -0.0),
        torch.cat((torch.zeros(1024), torch.full((1025,), -0.0))),
        torch.arange(2049.0) % 3,
        torch.arange(2049.0) * 1e6,
        -torch.arange(2049.0) * 2.0**-20,
        torch.where(torch.arange(2049) % 5 == 0, 1.0, float("-inf")),
        torch.full((2049,), 1e-40),
    ],
    ids=["zero", "minus zero", "both zeros", "three values", "huge", "finer than gaps", "minus infinity", "denormal"],
)
@pytest.mark.parametrize("mix", ["greedy", "sampled", "top_k", "top_p", "both", "all"])
def test_ties_and_extremes(logits: torch.Tensor, mix: str, device: torch.device) -> None:
    pair = Pair(2049, device)
    params = SamplingParams(**MIXES[mix], seed=6)
    pair.begin(params)
    pair.step(logits, Stages.of(params))


def test_stages_of_one_chooser_follow_each_other_in_any_order(device: torch.device) -> None:
    pair, order = Pair(515, device), random.Random(1)
    for step in range(20):
        params = SamplingParams(**MIXES[order.choice(list(MIXES))], seed=step)
        pair.begin(params, position=step)
        pair.step(drawn(515, step), order.choice([Stages.of(params), Stages.TRUNCATED, Stages.LOGPROBS]))


@pytest.mark.parametrize("mix", ["greedy", "all"])
def test_a_stopped_slot_is_left_as_it_is(mix: str, device: torch.device) -> None:
    pair = Pair(515, device)
    params = SamplingParams(**MIXES[mix])
    for end in (END_ID, 77) if mix == "all" else (END_ID,):
        pair.begin(params)
        logits = drawn(515, 8)
        logits[end] = 1000.0
        assert pair.step(logits, Stages.of(params)) == end
        assert bool(pair.fast.slots.stopped[ACTIVE])
        before = pair.fast.sampler.counts.clone()
        pair.step(drawn(515, 9), Stages.of(params))
        assert int(pair.fast.slots.token[ACTIVE]) == end
        assert int(pair.fast.slots.position[ACTIVE]) == 8
        assert torch.equal(pair.fast.sampler.counts, before)


def random_params(order: random.Random, stages: Stages) -> SamplingParams:
    """Anything that `stages` serves."""
    if stages is Stages.GREEDY:
        return SamplingParams()
    wishes: dict[str, Any] = {
        "temperature": order.choice([0.0, 0.3, 0.7, 1.0, 1.5, 20.0]),
        "min_p": order.choice([0.0, 0.0, 0.01, 0.2]),
        "repetition_penalty": order.choice([1.0, 1.1, 0.7]),
        "presence_penalty": order.choice([0.0, 0.5, -1.0]),
        "frequency_penalty": order.choice([0.0, 0.3]),
        "seed": order.randrange(2**64),
    }
    if stages is not Stages.SAMPLED:
        wishes["top_k"] = order.choice([0, 1, 2, 50, 5000, 2**31 - 1])
        wishes["top_p"] = order.choice([1.0, 0.999, 0.9, 0.5, 1e-3])
    return SamplingParams(**wishes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("vocabulary", [49152, 128256])
@pytest.mark.parametrize("stages", list(Stages))
@pytest.mark.parametrize("captured", [False, True])
def test_300_random_states_on_the_device(vocabulary: int, stages: Stages, captured: bool) -> None:
    """bf16 logits, so that ties are common; one graph for all parameters."""
    device, order = torch.device("cuda"), random.Random(vocabulary)
    pair = Pair(vocabulary, device)
    logits = torch.zeros(vocabulary, device=device)
    graph = torch.cuda.CUDAGraph()
    if captured:
        pair.chooser.choose(logits, stages)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            pair.chooser.choose(logits, stages)
    picked = set()
    for state in range(300):
        params = random_params(order, stages)
        if state % 3 == 0 or stages is Stages.GREEDY:
            pair.begin(params, position=order.randrange(2**17), prompt=tuple(range(state, vocabulary, 91)))
        noise = torch.randn(vocabulary, generator=torch.Generator(device).manual_seed(state), device=device)
        logits.copy_((noise * order.choice([0.5, 3.0, 12.0])).bfloat16())
        picked.add(pair.step(logits, stages, graph if captured else None))
    assert len(picked) > 100


COMPILE = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from engine.kernels import choose, truncate

capability, pdl = int(sys.argv[1]), sys.argv[2] == "True"
V, BLOCKS, PADDED = 128256, 126, 128
POINTERS = {
    "logits": "*fp32", "scaled": "*fp32", "maxima": "*fp32", "numbers": "*fp32", "bias": "*fp32", "x": "*fp32",
    "active": "*i64", "integers": "*i64", "histograms": "*i64", "state": "*i64", "best": "*i64", "token": "*i64",
    "position": "*i64", "stop_ids": "*i64", "picked": "*i64", "counts": "*i32", "seen": "*i8", "stopped": "*i8",
    "allowed": "*i32", "embedding": "*bf16", "rounded": "*bf16",
}
SIZES = {
    "V": V, "BLOCK": choose.BLOCK, "BLOCKS": BLOCKS, "BLOCKS_PADDED": PADDED, "CLEARED": 20480, "STOPS": 33,
    "STOPS_PADDED": 64, "WIDTH": 4096, "WIDTH_PADDED": 4096, "ADJUSTED": True, "TRUNCATED": True, "COUNTED": True,
    "PDL": pdl,
}
sizes = {}
for name in ("_adjust", "_count_gaps", "_narrow_top_k", "_narrow_top_p", "_candidates", "_advance"):
    kernel = getattr(choose, name, None) or getattr(truncate, name)
    signature = {arg: POINTERS.get(arg, "constexpr") for arg in kernel.arg_names}
    constants = {(i,): SIZES[arg] for i, arg in enumerate(kernel.arg_names) if arg not in POINTERS}
    options = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"]
    assert ("griddepcontrol" in ptx) == pdl, name
    assert "fma.rn.f32" not in ptx and "div.full" not in ptx, name
    sizes[name] = [len(compiled.asm["cubin"]), compiled.metadata.shared]
print(json.dumps(sizes))
"""


@pytest.mark.parametrize(
    ("capability", "pdl"),
    [
        (80, False),
        (90, True),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((86, False), (89, False), (90, False))),
    ],
)
def test_every_kernel_compiles_for(capability: int, pdl: bool) -> None:
    """No device is needed. In a process of its own: here kernels may be the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability), str(pdl)],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(shared <= 48 * 1024 for _, shared in json.loads(done.stdout).values())
