"""What one decode step costs: seconds, kernels and the time in which the device had nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from engine.engine import Engine
from engine.outputs import Token
from engine.params import SamplingParams

# Two turns of different length are profiled; their difference is decode steps and nothing else.
SHORT_TURN = 8
LONG_TURN = 40
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """Decode steps of several equal turns, prefill left out.

    Attributes:
        seconds_per_token: median over the turns of the mean step.
        cpu_seconds_per_token: time of the process on CPUs meanwhile, all threads.
        steps: decode steps of one turn.
        replays: how many of them were graph replays.
        eager: reason -> steps that were not.
    """

    seconds_per_token: float
    cpu_seconds_per_token: float
    steps: int
    replays: int
    eager: dict[str, int]


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One decode step as the device saw it.

    Attributes:
        kernels: kernels of a step.
        copies: memory copies and fills of a step.
        busy_s: seconds in which at least one of them ran; a kernel that was launched early and waits for the one
            before it counts as running.
    """

    kernels: float
    copies: float
    busy_s: float


def measure_decode(engine: Engine, prompt_ids: Sequence[int], new_tokens: int, turns: int = 3) -> DecodeTiming:
    """Time `turns` greedy turns of `new_tokens` after one that warms up.

    The clock runs from the first token to the last, so it counts one step less than the turn has tokens.

    Raises:
        ValueError: the model ended its answer before its third token.
    """
    play_turn(engine, prompt_ids, new_tokens)
    seconds, cpu_seconds = [], []
    tokens: list[Token] = []
    for _ in range(turns):
        tokens, wall_s, cpu_s = play_turn(engine, prompt_ids, new_tokens)
        if len(tokens) < 3:
            raise ValueError(f"the model ended after {len(tokens)} tokens; nothing to measure: use another prompt")
        seconds.append(wall_s / (len(tokens) - 1))
        cpu_seconds.append(cpu_s / (len(tokens) - 1))
    eager: dict[str, int] = {}
    for token in tokens:
        if token.eager is not None:
            eager[token.eager.value] = eager.get(token.eager.value, 0) + 1
    return DecodeTiming(
        seconds_per_token=statistics.median(seconds),
        cpu_seconds_per_token=statistics.median(cpu_seconds),
        steps=len(tokens),
        replays=len(tokens) - sum(eager.values()),
        eager=eager,
    )


def profile_step(engine: Engine, prompt_ids: Sequence[int]) -> StepProfile | None:
    """Count and time the kernels of a step with torch's profiler; None where there is no CUDA device."""
    if engine.info.device == "cpu":
        return None
    steps: list[int] = []

    def turn(new_tokens: int) -> StepProfile:
        tokens, profile = profiled(lambda: play_turn(engine, prompt_ids, new_tokens)[0])
        steps.append(len(tokens))
        return profile

    short, long = turn(SHORT_TURN), turn(LONG_TURN)
    return difference(short, long, steps[1] - steps[0]) if steps[1] > steps[0] else None


def play_turn(engine: Engine, prompt_ids: Sequence[int], new_tokens: int) -> tuple[list[Token], float, float]:
    """One greedy turn from an empty context: its tokens, and the wall and CPU seconds from its first to its last."""
    context = engine.open_context()
    tokens: list[Token] = []
    start = end = start_cpu = end_cpu = 0.0
    try:
        for step in engine.generate(context, prompt_ids, SamplingParams(max_tokens=new_tokens)):
            if isinstance(step, Token):
                end, end_cpu = time.perf_counter(), time.process_time()
                if not tokens:
                    start, start_cpu = end, end_cpu
                tokens.append(step)
    finally:
        context.close()
    return tokens, end - start, end_cpu - start_cpu


def profiled(play: Callable[[], _T]) -> tuple[_T, StepProfile]:
    """What `play` returns, and all its work on the CUDA device added up."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        result = play()
        torch.cuda.synchronize()
    work = [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profile.events() or []
        if event.device_type == torch.profiler.DeviceType.CUDA
    ]
    return result, added_up(work)


def difference(short: StepProfile, long: StepProfile, steps: int) -> StepProfile:
    """One step, from a turn and another that is `steps` longer."""
    return StepProfile(
        kernels=(long.kernels - short.kernels) / steps,
        copies=(long.copies - short.copies) / steps,
        busy_s=(long.busy_s - short.busy_s) / steps,
    )


def added_up(work: Sequence[tuple[str, float, float]]) -> StepProfile:
    """What (name, start, end) of everything that ran on a device comes to; times in seconds."""
    copies = sum(name.startswith(("Memcpy", "Memset")) for name, _, _ in work)
    return StepProfile(len(work) - copies, copies, covered((start, end) for _, start, end in work))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of the intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
