"""What the sampler adds to a decode step: `python -m tests.benchmarks.choose_step` on a machine with a CUDA device.

Each row is the mean of many choices in one captured graph. `hot`: one after the other, all data in the second-level
cache. `cold`: each behind a read of 256 MiB, whose own time is taken off, as behind the head's weights in a step.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import torch

from engine.kernels.choose import Chooser
from engine.kernels.ops import SlotTable
from engine.params import SamplingParams
from engine.sampler import Choice, SamplerTable, Stages, choose

VOCABULARIES = (32000, 49152, 128256, 151936)
WIDTH = 4096
CHOICES = 20  # in one graph
REPEATS = 15
MODES: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "penalised": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.2),
    "sampled": SamplingParams(temperature=0.8, min_p=0.02, seed=1),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95, seed=1),
    "top_k": SamplingParams(temperature=0.8, top_k=50, seed=1),
    "everything": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.1, seed=1
    ),
}


def main() -> int:
    """Print a table, and as the last line the same in JSON."""
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    rows = []
    print(f"{'ids':>8} {'mode':<11} {'logits':<7} {'hot us':>8} {'cold us':>8} {'torch us':>9}")
    for vocabulary in VOCABULARIES:
        spread = torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)).mul_(3.0).to(device)
        cases = [(mode, "spread", spread) for mode in MODES]
        cases.append(("everything", "equal", torch.zeros_like(spread)))  # all atomics meet in one bin
        for mode, name, logits in cases:
            hot_us, cold_us, torch_us = measure(MODES[mode], logits)
            rows.append(
                {
                    "vocabulary": vocabulary, "mode": mode, "logits": name,
                    "hot_us": hot_us, "cold_us": cold_us, "torch_us": torch_us,
                }
            )  # fmt: skip
            print(f"{vocabulary:>8} {mode:<11} {name:<7} {hot_us:8.2f} {cold_us:8.2f} {torch_us:9.2f}")
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "choices": rows}))
    return 0


def measure(params: SamplingParams, logits: torch.Tensor) -> tuple[float, float, float]:
    """Microseconds of one choice by the kernels, hot and cold, and by torch, hot."""
    device, vocabulary = logits.device, logits.shape[0]
    slots = SlotTable(
        active=torch.zeros(1, dtype=torch.int64, device=device),
        token=torch.zeros(1, dtype=torch.int64, device=device),
        position=torch.full((1,), 1000, dtype=torch.int64, device=device),
        stopped=torch.zeros(1, dtype=torch.bool, device=device),
    )
    sampler = SamplerTable.allocate(1, vocabulary, 1, device)
    sampler.write(0, params, range(0, vocabulary, 100), ())
    choice = Choice.allocate(device)
    embedding = torch.zeros(vocabulary, WIDTH, dtype=torch.bfloat16, device=device)
    x = torch.zeros(1, WIDTH, device=device)
    chooser = Chooser(slots, sampler, choice, embedding, x, torch.zeros_like(x, dtype=torch.bfloat16))
    stages = Stages.of(params)
    large = torch.zeros(2**26, device=device)
    total = torch.zeros((), device=device)

    def read() -> None:
        torch.sum(large, dim=0, out=total)

    def read_and_choose() -> None:
        read()
        chooser.choose(logits, stages)

    hot_us = captured_us(lambda: chooser.choose(logits, stages))
    cold_us = captured_us(read_and_choose) - captured_us(read)
    torch_us = captured_us(lambda: choose(logits, stages, slots, sampler, choice))
    return hot_us, cold_us, torch_us


def captured_us(work: Callable[[], None]) -> float:
    """The median over replays of `work`'s microseconds in a graph that holds it many times."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHOICES):
            work()
    times_us: list[float] = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(start.elapsed_time(end) * 1000.0 / CHOICES)
    return statistics.median(times_us)


if __name__ == "__main__":
    sys.exit(main())
