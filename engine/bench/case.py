"""One decode case from end to end: open the model, measure, and relate the step to the bytes that it reads."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from engine.architecture import Architecture
from engine.bench.decode import measure_decode, profile_step
from engine.bench.opening import Setup, opened, round_context, torch_device
from engine.bench.shapes import cache_bytes, weight_bytes
from engine.config import Device, Graphs, Kernels, Precision
from engine.engine import Engine
from engine.errors import InvalidRequestError

_SEED = 20


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """What to measure. `context` None takes what prompt and answer need; `eager_too` runs both kinds of step (CUDA)."""

    model: str
    device: Device
    precision: Precision
    kernels: Kernels
    prompt_tokens: int
    new_tokens: int
    context: int | None
    threads: int | None
    turns: int
    eager_too: bool

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("new_tokens", 3), ("turns", 1)):
            if getattr(self, name) < least:
                raise InvalidRequestError(name, f"must be at least {least}; got {getattr(self, name)}")
        if self.context is not None and self.context < self.prompt_tokens + self.new_tokens:
            raise InvalidRequestError(
                "context", f"must hold {self.prompt_tokens} + {self.new_tokens} tokens; got {self.context}"
            )

    @property
    def held_context(self) -> int:
        """Tokens that a session holds in this run."""
        return self.context or round_context(self.prompt_tokens + self.new_tokens)

    def setup(self, graphs: Graphs) -> Setup:
        """The engine to open."""
        return Setup(
            model=self.model,
            context=self.held_context,
            device=self.device,
            precision=self.precision,
            kernels=self.kernels,
            threads=self.threads,
            graphs=graphs,
        )


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One row of the table.

    Attributes:
        kernels: those that ran: plain, fused or quantised.
        step: `graph` or `eager`; `mixed` where a turn had both.
        bytes_per_token: weights as they are read, with the output head; keys and values at the middle of the answer.
        kernels_per_step, idle_share: of the device; None on a CPU. A kernel launched early counts as busy.
        steps, replays, eager_steps: decode steps of one turn, and how they were run.
    """

    model: str
    precision: str
    kernels: str
    step: str
    seconds_per_token: float
    bytes_per_token: int
    cpu_seconds_per_token: float
    kernels_per_step: float | None
    copies_per_step: float | None
    idle_share: float | None
    steps: int
    replays: int
    eager_steps: dict[str, int]

    @property
    def bytes_per_s(self) -> float:
        """Rate at which the step reads what it must."""
        return self.bytes_per_token / self.seconds_per_token


def measure_case(case: DecodeCase) -> list[DecodeResult]:
    """Measure one model: on CUDA with graphs, then the same step eagerly; on a CPU eagerly."""
    on_cuda = torch_device(case.device).type == "cuda"
    kinds: tuple[Graphs, ...] = ("on", "off") if on_cuda and case.eager_too else ("on",)
    results = []
    for graphs in kinds:
        with opened(case.setup(graphs)) as engine:
            results.append(_measure(case, engine))
    return results


def _measure(case: DecodeCase, engine: Engine) -> DecodeResult:
    architecture = engine.info.architecture
    assert isinstance(architecture, Architecture), "open_endless opens native models only"
    chooser = random.Random(_SEED)
    prompt_ids = [chooser.randrange(architecture.vocabulary) for _ in range(case.prompt_tokens)]
    timing = measure_decode(engine, prompt_ids, case.new_tokens, case.turns)
    profile = profile_step(engine, prompt_ids)
    element_bytes = getattr(torch, engine.info.precision).itemsize
    packed = engine.info.packed_bytes
    weights = weight_bytes(architecture, element_bytes) if packed is None else packed
    middle = case.prompt_tokens + case.new_tokens / 2
    return DecodeResult(
        model=case.model,
        precision=engine.info.precision,
        kernels=engine.info.kernels,
        step="graph" if timing.replays == timing.steps else "eager" if timing.replays == 0 else "mixed",
        seconds_per_token=timing.seconds_per_token,
        bytes_per_token=weights + cache_bytes(architecture, element_bytes, middle),
        cpu_seconds_per_token=timing.cpu_seconds_per_token,
        kernels_per_step=None if profile is None else profile.kernels,
        copies_per_step=None if profile is None else profile.copies,
        idle_share=None if profile is None else max(0.0, 1 - profile.busy_s / timing.seconds_per_token),
        steps=timing.steps,
        replays=timing.replays,
        eager_steps=timing.eager,
    )
