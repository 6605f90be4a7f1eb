"""What the stepper and the engine ask of a decoder, native or generic."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.cache import Slots
from engine.kernels.ops import SlotTable
from engine.sampler import Choice, SamplerTable
from engine.shapes import StepShape


class PlayBuffers(Protocol):
    """The fixed buffers that the host writes a turn's state to and reads its choices from. See StepBuffers."""

    @property
    def logits(self) -> torch.Tensor: ...
    @property
    def slots(self) -> SlotTable: ...
    @property
    def sampler(self) -> SamplerTable: ...
    @property
    def choice(self) -> Choice: ...


class Player(Protocol):
    """Weights, cache and buffers, and the step that plays on them."""

    @property
    def buffers(self) -> PlayBuffers:
        """Where turns are set up and choices are left."""

    @property
    def cache(self) -> Slots:
        """Keys and values, by slot."""

    @property
    def toolkit_name(self) -> str:
        """What computes; part of the numerics."""

    def step(self, shape: StepShape) -> None:
        """Play the active slot's next token. Touches fixed buffers only and looks at no value: it can be captured."""

    def prefill(self, slot: int, start: int, ids: torch.Tensor) -> None:
        """Fill the cache of `slot` with the keys and values of ids `[n]` int64 at positions start .. start + n - 1."""

    def embed(self) -> None:
        """Make ready for the active slot's next step what a step leaves for the next."""
