"""Search kernel settings in the decode step itself: what counts is the step, not a kernel alone."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.architecture import Architecture
from engine.bench.candidates import KERNELS, Candidate, changes, matrix_of
from engine.bench.opening import architecture_of, torch_device, torch_dtype
from engine.cache import KVCache
from engine.config import Device, Precision
from engine.errors import DeviceError, InvalidRequestError
from engine.kernels.tuning import AttendSetting, Kernel, RowSetting, Tuning, tuning_for
from engine.model import Decoder, StepBuffers
from engine.sampler import Stages
from engine.shapes import StepShape
from engine.toolkit import FusedEnding, Toolkit
from engine.weights import random_weights

_SHORT, _LONG = 256, 4096  # contexts, tokens: the bucket of a step
_STEPS = 64  # replays of one timing
_ROUNDS = 3
_WORTHWHILE = 0.999  # a setting must win a thousandth, or the one in place stays
_FEW_LAYERS, _WIDE = 8, 2000  # wide shapes are tuned on a few layers: each is far beyond any cache
_SEED = 20

Seconds = Callable[[Tuning], float]


@dataclass(frozen=True, slots=True)
class TuneCase:
    """What to tune. `budget_s` is all that the search may take; `long` looks at attention over 4096 tokens too."""

    model: str
    device: Device
    precision: Precision
    budget_s: float
    long: bool

    def __post_init__(self) -> None:
        if self.budget_s <= 0:
            raise InvalidRequestError("seconds", f"must be above 0; got {self.budget_s}")


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting's step; `seconds` is None where it does not fit the device."""

    kernel: str
    label: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class TuneResult:
    """One shape, tuned.

    Attributes:
        layers: of the decoder that was measured, which may have fewer than the model.
        before_s, after_s: the short step with the table as it was and as it came out.
        tried: every setting, in order.
        complete: the search ended before its time did.
        rows, attend: entries of the table for this shape, wherever they are not the formula's.
        norm_apart: whether the norm is a kernel of its own.
    """

    model: str
    layers: int
    before_s: float
    after_s: float
    tried: tuple[Tried, ...]
    complete: bool
    rows: dict[tuple[Kernel, int, int], RowSetting]
    attend: dict[tuple[int, int, int], AttendSetting]
    norm_apart: bool


def tune(case: TuneCase) -> TuneResult:
    """Search for one shape, from the table's settings for this device. Raises DeviceError without CUDA."""
    device = torch_device(case.device)
    if device.type != "cuda":
        raise DeviceError("tuning is for the fused kernels, which need a CUDA device; the CPU's path has no settings")
    a, dtype = architecture_of(case.model), torch_dtype(case.precision, device)
    if dtype == torch.float32:
        raise InvalidRequestError("precision", "must be bfloat16 or float16: there are no fused kernels for float32")
    layers = _FEW_LAYERS if a.width > _WIDE else a.layers
    a = replace(a, layers=min(layers, a.layers))
    deadline_s = time.monotonic() + case.budget_s
    first = tuning_for(torch.cuda.get_device_name(device))
    tried: list[Tried] = []
    seconds_at = _steps(a, dtype, device)
    best, complete = first, True
    for bucket in (_LONG, _SHORT) if case.long and a.context > _LONG + _STEPS else (_SHORT,):
        best, more, complete = search(a, best, partial(seconds_at, bucket), deadline_s, long=bucket == _LONG)
        tried += more
    before_s, after_s = seconds_at(_SHORT, first), seconds_at(_SHORT, best)
    del seconds_at  # and with it the weights
    gc.collect()
    torch.cuda.empty_cache()
    heads = (a.heads, a.kv_heads, a.head_dim)
    keys = [(kernel, *matrix_of(a, kernel)) for kernel in KERNELS]
    return TuneResult(
        model=case.model,
        layers=a.layers,
        before_s=before_s,
        after_s=after_s,
        tried=tuple(tried),
        complete=complete,
        rows={key: best.rows[key] for key in keys if key in best.rows},
        attend={heads: best.attend[heads]} if heads in best.attend else {},
        norm_apart=a.width in best.norm_apart,
    )


def search(
    a: Architecture,
    first: Tuning,
    seconds: Seconds,
    deadline_s: float,
    *,
    long: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tuning, list[Tried], bool]:
    """The best table found, one kernel after another, until there is nothing left to try or it is `deadline_s`.

    Returns it with all that was tried, and whether that was everything. A setting that the device refuses is skipped.
    """
    best, least = first, seconds(first)
    tried: list[Tried] = []
    groups = changes(a, first, long=long)
    group: list[Candidate] | None = next(groups)
    while group is not None:
        for candidate in group:
            if clock() >= deadline_s:
                return best, tried, False
            took = _seconds_or_none(seconds, candidate.tuning)
            tried.append(Tried(candidate.kernel, candidate.label, took))
            if took is not None and took < least * _WORTHWHILE:
                best, least = candidate.tuning, took
        try:
            group = groups.send(best)
        except StopIteration:
            group = None
    return best, tried, True


def entries(result: TuneResult) -> str:
    """The shape's lines for the device's table in `engine/kernels/tuning.py`."""
    lines = [f"# {result.model}: {result.before_s * 1e6:.1f} -> {result.after_s * 1e6:.1f} us, {result.layers} layers"]
    lines += [f"rows[{key}] = {setting}" for key, setting in result.rows.items()]
    lines += [f"attend[{key}] = {setting}" for key, setting in result.attend.items()]
    lines += ["# the norm is a kernel of its own: add the width to norm_apart"] if result.norm_apart else []
    return "\n".join(lines)


def _seconds_or_none(seconds: Seconds, tuning: Tuning) -> float | None:
    """What a step takes, or None where the compiler or the device refuses the setting."""
    from triton.errors import TritonError

    try:
        return seconds(tuning)
    except (TritonError, RuntimeError):
        return None


def _steps(a: Architecture, dtype: torch.dtype, device: torch.device) -> Callable[[int, Tuning], float]:
    """A decoder of random weights; what comes back is (bucket, table) -> seconds of a captured greedy step."""
    from engine.kernels.fused import FusedOps  # needs Triton

    context = min(a.context, _LONG + _SHORT)
    weights = random_weights(a, device, dtype, context, _SEED)
    cache = KVCache(a, 1, context, dtype, device)
    buffers = StepBuffers.allocate(a, 1, 1, dtype, device)

    @torch.inference_mode()
    def seconds_at(bucket: int, tuning: Tuning) -> float:
        ops = FusedOps(a, dtype, device, tuning)
        decoder = Decoder(a, weights, cache, buffers, Toolkit("fused", ops, partial(FusedEnding, ops)))
        shape = StepShape(bucket, 1, Stages.GREEDY)

        def start() -> None:
            buffers.slots.position.fill_(bucket - _STEPS if bucket == _LONG else _STEPS // 2)
            buffers.slots.stopped.fill_(False)
            decoder.embed()

        start()
        decoder.step(shape)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decoder.step(shape)
        return statistics.median(_replayed(graph, start) for _ in range(_ROUNDS))

    return seconds_at


def _replayed(graph: torch.cuda.CUDAGraph, start: Callable[[], None]) -> float:
    """Mean seconds of `_STEPS` replays, by events."""
    start()
    graph.replay()
    start()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_STEPS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / _STEPS / 1e3
