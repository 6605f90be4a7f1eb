"""A pool of CUDA graphs, one per step shape, captured before the engine is ready.

All are captured on one stream, largest first, into one memory pool, so that together they take little more than the
largest: the allocator ties memory to streams, and smaller graphs fit into what the largest reserved. Capture mode is
thread-local, so that another thread's CUDA calls do not invalidate it. A capture that fails gives its memory back, is
counted with its reason, and leaves the eager path.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from engine.errors import FatalDeviceError
from engine.events import CaptureCause, CaptureOutcome, EagerReason, GraphCaptured, Listener, Progress
from engine.faults import is_fatal
from engine.shapes import ChunkShape, Shape


class GraphPool:
    """Captured graphs by shape, and for the shapes that have none, why."""

    def __init__(self, run: Callable[[Shape], None], listener: Listener) -> None:
        self._run = run
        self._listener = listener
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._failed: dict[Shape, EagerReason] = {}
        self._pool: Any = None  # torch's opaque handle of a memory pool
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes that are replays, largest first."""
        return tuple(self._graphs)

    def get(self, shape: Shape) -> torch.cuda.CUDAGraph | None:
        """The graph of a shape, or None."""
        return self._graphs.get(shape)

    def why_not(self, shape: Shape) -> EagerReason | None:
        """Why a shape that was asked for has no graph; None for one that was never asked for."""
        return self._failed.get(shape)

    def capture(self, shapes: Iterable[Shape], cause: CaptureCause) -> None:
        """Capture every shape, largest first. Never raises for one that cannot be captured."""
        ordered = sorted(shapes, key=lambda shape: shape.order)
        for done, shape in enumerate(ordered):
            self._listener(Progress("capture", done, len(ordered), "graphs"))
            started_s = time.perf_counter()
            outcome = self._capture(shape)
            seconds = time.perf_counter() - started_s
            prefill = isinstance(shape, ChunkShape)
            self._listener(GraphCaptured(shape.name, cause, outcome, seconds, self.bytes, prefill))
        self._listener(Progress("capture", len(ordered), len(ordered), "graphs"))

    def clear(self) -> None:
        """Drop every graph and give the pool's memory back."""
        self._graphs.clear()
        self._failed.clear()
        self._pool = None
        self._reclaim()
        self.bytes = 0

    def _capture(self, shape: Shape) -> CaptureOutcome:
        before = torch.cuda.memory_reserved()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
            ):
                self._run(shape)
        except Exception as error:
            if is_fatal(error):
                raise FatalDeviceError(f"the device was lost while capturing {shape.name}: {error}") from error
            return self._give_up(shape, graph, error)
        self._graphs[shape] = graph
        self.bytes += max(0, torch.cuda.memory_reserved() - before)
        return CaptureOutcome.CAPTURED

    def _give_up(self, shape: Shape, graph: torch.cuda.CUDAGraph, error: Exception) -> CaptureOutcome:
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        self._failed[shape] = EagerReason.OUT_OF_MEMORY if out_of_memory else EagerReason.CAPTURE_FAILED
        # The traceback keeps the step's frames, and so their tensors, alive.
        error.__traceback__ = None
        graph.reset()
        if not self._graphs:
            self._pool = None
        self._reclaim()
        return CaptureOutcome.OUT_OF_MEMORY if out_of_memory else CaptureOutcome.FAILED

    def _reclaim(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
