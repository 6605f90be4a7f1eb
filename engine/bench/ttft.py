"""Time to the first token, at the engine: of a short new turn on a warm session, and of a long prompt from empty."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from engine.bench.decode import profiled
from engine.bench.opening import Setup, architecture_of, opened, round_context
from engine.cache import Context
from engine.config import Device, Kernels, Precision
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.events import EngineEvent, PrefillDone
from engine.outputs import Token
from engine.params import SamplingParams

_STEPS = 32  # decode steps after the first token: the unit that the first token is told in
_SEED = 20


@dataclass(frozen=True, slots=True)
class TtftCase:
    """What to measure. Token counts; `warm_tokens` or `prompt_tokens` 0 leaves that turn out."""

    model: str
    device: Device
    precision: Precision
    kernels: Kernels
    new_turn_tokens: int
    warm_tokens: int
    prompt_tokens: int
    prefill_chunk: int
    threads: int | None
    turns: int

    def __post_init__(self) -> None:
        leasts = {"new_turn_tokens": 1, "warm_tokens": 0, "prompt_tokens": 0, "prefill_chunk": 1, "turns": 1}
        for name, least in leasts.items():
            if getattr(self, name) < least:
                raise InvalidRequestError(name, f"must be at least {least}; got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One prefill chunk: `tokens` of the prompt, and the graph that was replayed for it, None where it ran eagerly."""

    tokens: int
    seconds: float
    graph: str | None


@dataclass(frozen=True, slots=True)
class TtftResult:
    """One row of the table.

    Attributes:
        held_tokens, new_tokens: tokens whose keys and values the session held, and those that came new.
        seconds: median over the turns, from the call of the engine to its first token.
        most_seconds: of the slowest turn.
        step_seconds: median decode step right after the first token, in the same turns.
        cpu_seconds: median time of the process on CPUs until the first token, all threads.
        chunks: of the last turn.
        kernels, idle_share: of the device until the first token; None on a CPU.
    """

    model: str
    precision: str
    kernels_kind: str
    held_tokens: int
    new_tokens: int
    prefill_chunk: int
    seconds: float
    most_seconds: float
    step_seconds: float
    cpu_seconds: float
    chunks: tuple[Chunk, ...]
    kernels: float | None
    idle_share: float | None

    @property
    def in_steps(self) -> float:
        """Time to the first token in decode steps."""
        return self.seconds / self.step_seconds


class _Watch:
    """Listens to the engine: which chunks were prefilled, and how."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def __call__(self, event: EngineEvent) -> None:
        if isinstance(event, PrefillDone):
            self.chunks.append(Chunk(event.tokens, event.seconds, event.graph))


@dataclass(frozen=True, slots=True)
class _Timing:
    """One turn: wall and CPU seconds to its first token, mean seconds of the steps after it."""

    seconds: float
    cpu_seconds: float
    step_seconds: float


def measure_ttft(case: TtftCase) -> list[TtftResult]:
    """Measure both turns of one model. Each turn brings tokens that no turn before it brought."""
    longest = max(case.warm_tokens + case.new_turn_tokens, case.prompt_tokens)
    most = architecture_of(case.model).context
    if longest + _STEPS > most:
        raise InvalidRequestError(
            "warm_tokens" if longest > case.prompt_tokens else "prompt_tokens",
            f"must leave room for {_STEPS} more tokens in the {most} of {case.model}; the longest turn has {longest}",
        )
    setup = Setup(
        model=case.model,
        context=min(most, round_context(longest + _STEPS)),
        device=case.device,
        precision=case.precision,
        kernels=case.kernels,
        threads=case.threads,
        prefill_chunk=case.prefill_chunk,
    )
    watch = _Watch()
    with opened(setup, watch) as engine:
        kinds = [(case.warm_tokens, case.new_turn_tokens), (0, case.prompt_tokens)]
        wanted = kinds if case.warm_tokens else kinds[1:]
        return [_measure(case, engine, watch, held, new) for held, new in wanted if new]


def _measure(case: TtftCase, engine: Engine, watch: _Watch, held: int, new: int) -> TtftResult:
    chooser = random.Random(_SEED)

    def ids(count: int) -> list[int]:
        return [chooser.randrange(engine.info.architecture.vocabulary) for _ in range(count)]

    context = engine.open_context()
    try:
        past = ids(held)
        if past:
            _turn(engine, context, past, 1)  # all but its last token: the first new turn brings that one too
        _turn(engine, context, past + ids(new), 1 + _STEPS)  # warms up, and completes the past
        timings = []
        for _ in range(case.turns):
            watch.chunks.clear()
            timings.append(_turn(engine, context, past + ids(new), 1 + _STEPS))
        chunks = tuple(watch.chunks)
        seconds = statistics.median(timing.seconds for timing in timings)
        profile = None
        if engine.info.device != "cpu":
            _, profile = profiled(lambda: _turn(engine, context, past + ids(new), 1))
    finally:
        context.close()
    return TtftResult(
        model=case.model,
        precision=engine.info.precision,
        kernels_kind=engine.info.kernels,
        held_tokens=held,
        new_tokens=new,
        prefill_chunk=case.prefill_chunk,
        seconds=seconds,
        most_seconds=max(timing.seconds for timing in timings),
        step_seconds=statistics.median(timing.step_seconds for timing in timings),
        cpu_seconds=statistics.median(timing.cpu_seconds for timing in timings),
        chunks=chunks,
        kernels=None if profile is None else profile.kernels,
        idle_share=None if profile is None else max(0.0, 1 - profile.busy_s / seconds),
    )


def _turn(engine: Engine, context: Context, prompt_ids: Sequence[int], new_tokens: int) -> _Timing:
    """One greedy turn on what `context` holds of the prompt; the rest of what it holds is forgotten."""
    if engine.info.device != "cpu":
        torch.cuda.synchronize()
    start, start_cpu = time.perf_counter(), time.process_time()
    first = first_cpu = last = 0.0
    tokens = 0
    with closing(engine.generate(context, prompt_ids, SamplingParams(max_tokens=new_tokens))) as turn:
        for step in turn:
            if isinstance(step, Token):
                tokens += 1
                last = time.perf_counter()
                if tokens == 1:
                    first, first_cpu = last, time.process_time()
    return _Timing(first - start, first_cpu - start_cpu, (last - first) / max(1, tokens - 1))
