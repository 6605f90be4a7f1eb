"""Engines to measure: a model or a shape, opened so that an answer ends where the measurement ends it."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from engine.architecture import Architecture
from engine.bench.bandwidth import measure_read_bandwidth
from engine.bench.shapes import SHAPES
from engine.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.source import GenerationDefaults, JsonTokenizer, StoredTensor, TokenizerSource
from engine.config import Device, EngineConfig, Graphs, GraphStages, Kernels, Precision
from engine.engine import Engine
from engine.errors import DeviceError
from engine.events import Listener, ignore
from engine.setup import NativeModel, load_native
from engine.text import ChatText
from engine.threads import available_threads
from engine.weights import random_weights

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
class Setup:
    """What to open. `model` is a checkpoint, or the name of a shape with random weights; `context` is in tokens."""

    model: str
    context: int
    device: Device = "auto"
    precision: Precision = "auto"
    kernels: Kernels = "auto"
    threads: int | None = None
    graphs: Graphs = "on"
    prefill_chunk: int = EngineConfig().prefill_chunk
    graph_stages: tuple[GraphStages, ...] = ("greedy",)


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
    where = torch_device(device)
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


def round_context(tokens: int) -> int:
    """A context that holds `tokens`, in whole steps of 256."""
    return -(-tokens // _ROUND_CONTEXT_TO) * _ROUND_CONTEXT_TO


def architecture_of(model: str) -> Architecture:
    """The decoder's shape, from headers alone."""
    return SHAPES[model] if model in SHAPES else open_checkpoint(model).architecture


@contextmanager
def opened(setup: Setup, listener: Listener = ignore) -> Iterator[Engine]:
    """`open_endless`, closed at the end, its memory given back."""
    engine = open_endless(setup, listener)
    try:
        yield engine
    finally:
        engine.close()
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def open_endless(setup: Setup, listener: Listener = ignore) -> Engine:
    """An engine whose answers have no end but their length."""
    device = torch_device(setup.device)
    torch.set_num_threads(setup.threads or available_threads())
    dtype = torch_dtype(setup.precision, device)
    config = EngineConfig(
        model=setup.model,
        device=setup.device,
        precision=setup.precision,
        kernels=setup.kernels,
        context=setup.context,
        slots=1,
        graphs=setup.graphs,
        graph_stages=setup.graph_stages,
        prefill_chunk=setup.prefill_chunk,
        threads=setup.threads,
    )
    if setup.model in SHAPES:
        checkpoint: Checkpoint = ShapeCheckpoint.of(setup.model, dtype)
        weights = random_weights(checkpoint.architecture, device, dtype, setup.context, _SEED)
        if device.type == "cuda":
            torch.cuda.synchronize()  # they are drawn on a stream that the engine's own does not wait for
        model = NativeModel(checkpoint.architecture, weights)
    else:
        checkpoint = open_checkpoint(setup.model)
        model = load_native(checkpoint, config, device, dtype, ignore)
    return Engine(config, checkpoint, model, cast("ChatText", EndlessText()), listener)


def torch_device(device: Device) -> torch.device:
    """The device that a flag means. Raises DeviceError where it is not there."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("device cuda was asked for and torch sees none; check the driver, or use --device cpu")
    return torch.device("cuda", torch.cuda.current_device())


def torch_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The type that a flag means on `device`."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return cast("torch.dtype", getattr(torch, precision))


def _cpu_name() -> str:
    """The processor's marketing name where Linux tells it, else the machine's kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
