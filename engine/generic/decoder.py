"""The step of a generic model: the module's forward from a static cache, then the same choice as everywhere."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
import transformers

from engine.errors import UnsupportedModelError
from engine.generic.cache import Place, SlotCache
from engine.generic.loading import GenericModel, unsupported
from engine.kernels.ops import SlotTable
from engine.sampler import Choice, SamplerTable, choose
from engine.shapes import StepShape

_CHECKED_IDS = 12
# Of the reference's spread. A cache that is not read or read wrongly errs by its whole size.
_TOLERANCE = {torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.25}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenericBuffers:
    """All that a step touches beside module and cache; V vocabulary. logits `[1, V]` float32."""

    logits: torch.Tensor
    slots: SlotTable
    sampler: SamplerTable
    choice: Choice

    @classmethod
    def allocate(cls, vocabulary: int, slots: int, ends: int, device: torch.device) -> GenericBuffers:
        """Fresh buffers; `ends` is how many end tokens the model has."""
        return cls(
            logits=torch.zeros(1, vocabulary, dtype=torch.float32, device=device),
            slots=SlotTable.allocate(slots, device),
            sampler=SamplerTable.allocate(slots, vocabulary, ends, device),
            choice=Choice.allocate(device),
        )


class GenericDecoder:
    """A module of transformers as a player."""

    def __init__(self, model: GenericModel, slots: int, context: int, ends: int) -> None:
        self.buffers = GenericBuffers.allocate(model.architecture.vocabulary, slots, ends, model.device)
        self.cache = SlotCache(model.shapes, slots, context, model.dtype, model.device)
        self.toolkit_name = f"transformers {transformers.__version__}"
        self._model = model
        self._tolerance = _TOLERANCE[model.dtype]
        self._exact = False

    def embed(self) -> None:
        """A step starts from the id, and leaves nothing else for the next."""

    def step(self, shape: StepShape) -> None:
        """Play the active slot's next token: forward, logits, choice."""
        b = self.buffers
        active = b.slots.active
        token = b.slots.token.index_select(0, active)
        position = b.slots.position.index_select(0, active)
        b.logits.copy_(self._forward(token, self._place(active, position, shape.bucket)))
        choose(b.logits[-1], shape.stages, b.slots, b.sampler, b.choice)

    def prefill(self, slot: int, start: int, ids: torch.Tensor) -> None:
        """Fill the cache of `slot` with the keys and values of ids `[n]` int64 at positions start .. start + n - 1."""
        end = start + ids.shape[0]
        slots = torch.tensor([slot], dtype=torch.int64, device=ids.device)
        self._forward(ids, Place(slots, torch.arange(start, end, device=ids.device), end))

    @torch.inference_mode()
    def check(self) -> None:
        """Raise UnsupportedModelError unless prefill and single tokens give the logits of one forward without a cache.

        Some modules read their cache in ways of their own; that has to show before anyone reads a wrong word. Those
        that cannot bear to be given positions yet to come are played without them, which no graph can do.
        """
        family = self._model.architecture.family
        try:
            if self._deviation() <= self._tolerance:
                return
        except UnsupportedModelError:
            pass  # it may yet do without positions to come
        self._exact = True
        error = self._deviation()
        if error > self._tolerance:
            raise UnsupportedModelError(
                f"{family}: played from a static cache its logits differ by {error:.1%} from those without one; "
                f"transformers {transformers.__version__} does not support that"
            )
        _log.warning("%s: its attention takes no fixed length, so no step of it can be captured", family)

    def _deviation(self) -> float:
        """How far logits from the cache are from those without one, as a share of their spread."""
        model, device = self._model, self._model.device
        count = min(_CHECKED_IDS, self.cache.context)
        chunk = count // 2
        positions = torch.arange(count, device=device)
        ids = positions * 7 % model.architecture.vocabulary
        slot = torch.zeros(1, dtype=torch.int64, device=device)
        with unsupported(model.architecture.family):
            expected = model.forward(ids, positions, None)[chunk:].float()
            self.prefill(0, 0, ids[:chunk])
            steps = [
                self._forward(ids[i : i + 1], self._place(slot, positions[i : i + 1], self.cache.context))
                for i in range(chunk, count)
            ]
        spread = (expected - expected.mean(dim=-1, keepdim=True)).norm()
        error = float((torch.cat(steps).float() - expected).norm() / spread)
        return error if math.isfinite(error) else math.inf

    def _place(self, slot: torch.Tensor, position: torch.Tensor, bucket: int) -> Place:
        return Place(slot, position, int(position) + 1 if self._exact else bucket)

    def _forward(self, ids: torch.Tensor, place: Place) -> torch.Tensor:
        """Logits `[1, vocabulary]` after the last of ids `[n]`, which go to `place`."""
        with self.cache.at(place) as cache:
            return self._model.forward(ids, place.positions, cache)[-1:]
