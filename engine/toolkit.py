"""Which kernels a decoder plays with: plain torch, the twin, the fused or the quantised ones. Each ends a step its way.

The end of a step is all that follows the layers: logits, choice, the slot moved on, and the next step's embedding in x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from engine.architecture import Architecture
from engine.errors import StepError
from engine.kernels.native import Compilation
from engine.kernels.ops import DecoderWeights, Ops
from engine.kernels.plain import PlainOps
from engine.sampler import Stages, choose

if TYPE_CHECKING:
    from engine.cache import KVCache
    from engine.kernels.fused import FusedOps
    from engine.model import StepBuffers


class Whole(Protocol):
    """Layers and head of one row in one call."""

    def play(self) -> None:
        """From the active slot's x to its logits, its keys and values written."""

    def close(self) -> None:
        """Let its threads go."""


class Ending(Protocol):
    """One way to end a step of one row."""

    def conclude(self, stages: Stages) -> None:
        """From x after the last layer to x before the next step's first."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """`name` is part of the numerics; `ops` play the layers; `ending(weights, buffers, eps)` makes what ends a step.

    `widths` are the rows beyond one for which `ops` give each row the bits it has alone. `whole(weights, buffers,
    cache, eps)`, where there is one, plays layers and head in the place of `ops`; the ending then only chooses.
    """

    name: str
    ops: Ops
    ending: Callable[[DecoderWeights, StepBuffers, float], Ending]
    widths: tuple[int, ...] = ()
    whole: Callable[[DecoderWeights, StepBuffers, KVCache, float], Whole] | None = None


class PlainEnding:
    """In torch: the twin."""

    def __init__(self, ops: Ops, weights: DecoderWeights, buffers: StepBuffers, eps: float) -> None:
        self._ops, self._weights, self._buffers, self._eps = ops, weights, buffers, eps

    def conclude(self, stages: Stages) -> None:
        """See Ending."""
        b, w = self._buffers, self._weights
        self._ops.head(b.x, w, self._eps, b.logits)
        choose(b.logits[-1], stages, b.slots, b.sampler, b.choice)
        self._ops.embed(w.embedding, b.slots, b.x)


class ChoosingEnding(PlainEnding):
    """In torch, the logits being there."""

    def conclude(self, stages: Stages) -> None:
        """See Ending."""
        b = self._buffers
        choose(b.logits[-1], stages, b.slots, b.sampler, b.choice)
        self._ops.embed(self._weights.embedding, b.slots, b.x)


class FusedEnding:
    """In a few kernels: three where the turn is greedy."""

    def __init__(self, ops: FusedOps, weights: DecoderWeights, buffers: StepBuffers, eps: float) -> None:
        from engine.kernels.choose import Chooser

        b = buffers
        self._ops, self._weights, self._buffers, self._eps = ops, weights, buffers, eps
        self._chooser = Chooser(b.slots, b.sampler, b.choice, weights.embedding, b.x, ops.rounding(b.x))

    def conclude(self, stages: Stages) -> None:
        """See Ending."""
        b, w = self._buffers, self._weights
        if stages is Stages.GREEDY:
            self._ops.greedy_head_and_pick(b.x, w, self._eps, b.logits, b.slots, b.sampler.stop_ids, b.choice.token_id)
        else:
            self._ops.head(b.x, w, self._eps, b.logits)
            self._chooser.choose(b.logits[-1], stages)


def plain_toolkit(device: torch.device) -> Toolkit:
    """Plain torch, on any device and in any precision."""
    ops = PlainOps(device, torch.get_num_threads())
    return Toolkit("plain", ops, partial(PlainEnding, ops))


def quantised_toolkit(compilation: Compilation) -> Toolkit:
    """Steps compiled by Numba on the file's own blocks, on the CPU in float32. Waits for the compilation."""
    compilation.wait()
    from engine.kernels.whole_step import WholeStep

    def whole(weights: DecoderWeights, buffers: StepBuffers, cache: KVCache, eps: float) -> Whole:
        if weights.packed is None:
            raise StepError("quantised kernels play from stored blocks, and these weights were loaded without them")
        return WholeStep(weights, buffers, cache.data, eps, torch.get_num_threads())

    ops = PlainOps(torch.device("cpu"), torch.get_num_threads())
    return Toolkit("quantised", ops, partial(ChoosingEnding, ops), whole=whole)


def fused_toolkit(architecture: Architecture, dtype: torch.dtype, device: torch.device) -> Toolkit:
    """Triton's kernels, on CUDA in half precision."""
    from engine.kernels.fused import FusedOps  # needs Triton, which a CPU may lack

    ops = FusedOps(architecture, dtype, device)
    return Toolkit("fused", ops, partial(FusedEnding, ops), widths=(2, 4, 8))
