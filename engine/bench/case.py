"""One decode case from end to end: open the model, measure, and relate the step to the bytes that it reads."""

from __future__ import annotations

import gc
import platform
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from engine.architecture import Architecture
from engine.bench.bandwidth import measure_read_bandwidth
from engine.bench.decode import measure_decode, profile_step
from engine.bench.shapes import SHAPES, cache_bytes, weight_bytes
from engine.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.source import GenerationDefaults, JsonTokenizer, StoredTensor, TokenizerSource
from engine.config import Device, EngineConfig, Graphs, Kernels, Precision
from engine.engine import Engine
from engine.errors import DeviceError, InvalidRequestError
from engine.events import ignore
from engine.setup import NativeModel
from engine.text import ChatText
from engine.threads import available_threads
from engine.weights import load_weights, random_weights

_ROUND_CONTEXT_TO = 256
_SEED = 20


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device of a run. `read_bytes_per_s` is its read bandwidth as the `reader` measured it just now."""

    name: str
    read_bytes_per_s: float
    reader: str
    torch_version: str
    cuda_version: str | None
    threads: int


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
        needed = self.prompt_tokens + self.new_tokens
        return self.context or -(-needed // _ROUND_CONTEXT_TO) * _ROUND_CONTEXT_TO


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One row of the table.

    Attributes:
        kernels: as asked for: auto, plain or fused.
        step: `graph` or `eager`; `mixed` where a turn had both.
        bytes_per_token: weights with the output head, and keys and values at the middle of the answer.
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


@dataclass(frozen=True, slots=True)
class ShapeCheckpoint:
    """A shape without a checkpoint: what an engine asks of one when its weights are random."""

    name: str
    architecture: Architecture
    tokenizer: TokenizerSource
    chat_template: str | None
    defaults: GenerationDefaults
    dtype: torch.dtype
    total_bytes: int = 0

    @classmethod
    def of(cls, name: str, dtype: torch.dtype) -> ShapeCheckpoint:
        """The shape called `name`."""
        no_tokenizer = JsonTokenizer(Path("random-weights-have-no-tokenizer.json"), {})
        return cls(name, SHAPES[name], no_tokenizer, None, GenerationDefaults(), dtype)

    def digest(self) -> str:
        """The name is all there is."""
        return self.name

    def tensors(self) -> Iterator[StoredTensor]:
        """None are stored."""
        return iter(())


class EndlessText:
    """A text side without end tokens, so that an answer has exactly as many tokens as were asked for."""

    end_ids: frozenset[int] = frozenset()


def device_facts(device: Device, threads: int | None) -> DeviceFacts:
    """Name the device and measure its read bandwidth."""
    torch.set_num_threads(threads or available_threads())
    where = _torch_device(device)
    bandwidth = measure_read_bandwidth(where)
    if where.type == "cuda":
        torch.cuda.empty_cache()  # the engine counts free memory before it sizes its cache
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else _cpu_name()
    return DeviceFacts(
        name=name,
        read_bytes_per_s=bandwidth.bytes_per_s,
        reader=bandwidth.reader,
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        threads=torch.get_num_threads(),
    )


def measure_case(case: DecodeCase) -> list[DecodeResult]:
    """Measure one model: on CUDA with graphs, then the same step eagerly; on a CPU eagerly."""
    on_cuda = _torch_device(case.device).type == "cuda"
    results = []
    for graphs in ("on", "off") if on_cuda and case.eager_too else ("on",):
        engine = open_endless(case, graphs)
        try:
            results.append(_measure(case, engine))
        finally:
            engine.close()
            del engine
            gc.collect()
            if on_cuda:
                torch.cuda.empty_cache()
    return results


def open_endless(case: DecodeCase, graphs: Graphs) -> Engine:
    """An engine for `case` whose answers have no end but their length."""
    device = _torch_device(case.device)
    torch.set_num_threads(case.threads or available_threads())
    dtype = _dtype(case.precision, device)
    config = EngineConfig(
        model=case.model,
        device=case.device,
        precision=case.precision,
        kernels=case.kernels,
        context=case.held_context,
        slots=1,
        graphs=graphs,
        graph_stages=("greedy",),
        threads=case.threads,
    )
    if case.model in SHAPES:
        checkpoint: Checkpoint = ShapeCheckpoint.of(case.model, dtype)
        weights = random_weights(checkpoint.architecture, device, dtype, case.held_context, _SEED)
        if device.type == "cuda":
            torch.cuda.synchronize()  # they are drawn on a stream that the engine's own does not wait for
    else:
        checkpoint = open_checkpoint(case.model)
        weights = load_weights(checkpoint, device, dtype, case.held_context, ignore)
    model = NativeModel(checkpoint.architecture, weights)
    return Engine(config, checkpoint, model, cast("ChatText", EndlessText()), ignore)


def _measure(case: DecodeCase, engine: Engine) -> DecodeResult:
    architecture = engine.info.architecture
    assert isinstance(architecture, Architecture), "open_endless opens native models only"
    chooser = random.Random(_SEED)
    prompt_ids = [chooser.randrange(architecture.vocabulary) for _ in range(case.prompt_tokens)]
    timing = measure_decode(engine, prompt_ids, case.new_tokens, case.turns)
    profile = profile_step(engine, prompt_ids)
    element_bytes = getattr(torch, engine.info.precision).itemsize
    middle = case.prompt_tokens + case.new_tokens / 2
    return DecodeResult(
        model=case.model,
        precision=engine.info.precision,
        kernels=case.kernels,
        step="graph" if timing.replays == timing.steps else "eager" if timing.replays == 0 else "mixed",
        seconds_per_token=timing.seconds_per_token,
        bytes_per_token=weight_bytes(architecture, element_bytes) + cache_bytes(architecture, element_bytes, middle),
        cpu_seconds_per_token=timing.cpu_seconds_per_token,
        kernels_per_step=None if profile is None else profile.kernels,
        copies_per_step=None if profile is None else profile.copies,
        idle_share=None if profile is None else max(0.0, 1 - profile.busy_s / timing.seconds_per_token),
        steps=timing.steps,
        replays=timing.replays,
        eager_steps=timing.eager,
    )


def _torch_device(device: Device) -> torch.device:
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("device cuda was asked for and torch sees none; check the driver, or use --device cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _cpu_name() -> str:
    """The processor's marketing name where Linux tells it, else the machine's kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return cast("torch.dtype", getattr(torch, precision))
