"""Which kernels a decoder plays with: plain torch, the twin, or the fused ones. Each has its own way to end a step.

The end of a step is all that follows the layers: logits, choice, the slot moved on, and the next step's embedding in x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from engine.architecture import Architecture
from engine.kernels.ops import DecoderWeights, Ops
from engine.kernels.plain import PlainOps
from engine.sampler import Stages, choose

if TYPE_CHECKING:
    from engine.kernels.fused import FusedOps
    from engine.model import StepBuffers


class Ending(Protocol):
    """One way to end a step of one row."""

    def conclude(self, stages: Stages) -> None:
        """From x after the last layer to x before the next step's first."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """`name` is part of the numerics; `ops` play the layers; `ending(weights, buffers, eps)` makes what ends a step.

    `widths` are the rows beyond one for which `ops` give each row the bits it has alone.
    """

    name: str
    ops: Ops
    ending: Callable[[DecoderWeights, StepBuffers, float], Ending]
    widths: tuple[int, ...] = ()


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


def fused_toolkit(architecture: Architecture, dtype: torch.dtype, device: torch.device) -> Toolkit:
    """Triton's kernels, on CUDA in half precision."""
    from engine.kernels.fused import FusedOps  # needs Triton, which a CPU may lack

    ops = FusedOps(architecture, dtype, device)
    return Toolkit("fused", ops, partial(FusedEnding, ops), widths=(2, 4, 8))
