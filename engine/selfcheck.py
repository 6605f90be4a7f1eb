"""Replays against their eager twin, on a slot that nobody plays: every graph at start, one at a time when idle."""

from __future__ import annotations

import time

import torch

from engine.cache import Slots
from engine.events import Listener, SelfChecked
from engine.params import SamplingParams
from engine.sampler import Stages
from engine.shapes import StepShape
from engine.stepper import Stepper

_PARAMS = {
    Stages.GREEDY: SamplingParams(),
    Stages.SAMPLED: SamplingParams(temperature=1.0, seed=1),
    Stages.TRUNCATED: SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=1),
    Stages.LOGPROBS: SamplingParams(temperature=1.0, top_p=0.9, seed=1, logprobs=True),
}
_TOKEN_ID = 1


class SelfCheck:
    """Knows whose turn it is. A mismatch is told, and from then on the stepper plays eagerly."""

    def __init__(self, stepper: Stepper, cache: Slots, listener: Listener) -> None:
        self._stepper = stepper
        self._cache = cache
        self._listener = listener
        self._next = 0

    def all(self) -> None:
        """Check every captured step, while no context is open."""
        for shape in self._stepper.captured_steps:
            self._check(shape)

    def one(self) -> bool:
        """Check the next captured step that some idle slot has room for. False where there is nothing to check."""
        shapes = self._stepper.captured_steps
        for offset in range(len(shapes)):
            at = (self._next + offset) % len(shapes)
            if self._check(shapes[at]):
                self._next = at + 1
                return True
        return bool(shapes)

    @torch.inference_mode()
    def _check(self, shape: StepShape) -> bool:
        """Whether there was a slot for it. The step plays behind what the slot holds, where nothing is kept."""
        slot = self._cache.scratch(shape.bucket - 1)
        if slot is None:
            return False
        started_s = time.perf_counter()
        sound = self._stepper.check(shape, slot, _PARAMS[shape.stages], _TOKEN_ID)
        self._listener(SelfChecked(shape.name, sound, time.perf_counter() - started_s))
        return True
