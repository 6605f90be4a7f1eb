"""A static cache for transformers' models whose slot and positions are device data.

Every layer keeps all positions of every slot, sliding ones too: their mask says what is seen. So a context can be cut
back to any prefix, and a captured step plays any slot at any position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from engine.cache import Slots, unwritten


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one position of one layer holds."""

    heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one forward plays: `slot` `[1]` and `positions` `[n]`, int64, on the device; it sees `length` positions."""

    slot: torch.Tensor
    positions: torch.Tensor
    length: int


class ShapeRecorder(CacheLayerMixin):  # type: ignore[misc] # transformers' classes are untyped
    """A layer that keeps nothing but the shape of what it was given."""

    shape: LayerShape | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is kept."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the shape."""
        self.shape = LayerShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what is seen."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Positions held."""
        return 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class SlotLayer(CacheLayerMixin):  # type: ignore[misc] # transformers' classes are untyped
    """Keys and values of one layer, `[slots, heads, context, dim]` each. `place` is where the forward at hand plays."""

    is_compileable = True
    is_sliding = False

    def __init__(
        self, shape: LayerShape | None, slots: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._context = context
        self.place: Place | None = None
        if shape is not None:  # a layer that shares another's keys and values has none of its own
            self.keys = unwritten((slots, shape.heads, context, shape.k_dim), dtype, device)
            self.values = unwritten((slots, shape.heads, context, shape.v_dim), dtype, device)
            self.is_initialized = True

    @property
    def bytes(self) -> int:
        """Device memory it takes."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Everything was allocated at once."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[1, heads, n, dim]` at the place, and return what is seen from there, `[1, heads, length, dim]`."""
        place = self._here()
        return self._write(self.keys, key_states, place), self._write(self.values, value_states, place)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what is seen."""
        return self._here().length, 0

    def get_seq_length(self) -> torch.Tensor:
        """Positions before this forward's first, a scalar on the device."""
        return self._here().positions[0]

    def get_max_length(self) -> int:
        """Positions of a slot."""
        return self._context

    def _here(self) -> Place:
        assert self.place is not None, "the cache is used outside `SlotCache.at`"
        return self.place

    @staticmethod
    def _write(store: torch.Tensor, new: torch.Tensor, place: Place) -> torch.Tensor:
        slot = place.slot.expand(place.positions.shape[0])
        store.transpose(1, 2).index_put_((slot, place.positions), new[0].transpose(0, 1))
        seen = store[:, :, : place.length]
        if store.shape[0] == 1:
            return seen
        if store.device.type == "cpu":
            return seen.narrow(0, int(place.slot), 1)
        # A graph cannot know the slot's address, so with several slots what is seen is copied once.
        return seen.index_select(0, place.slot)


class SlotCache(Slots):
    """A layer of each shape, and what transformers wants to see of them."""

    def __init__(
        self,
        shapes: tuple[LayerShape | None, ...],
        slots: int,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(slots)
        self.context = context
        self._layers = [SlotLayer(shape, slots, context, dtype, device) for shape in shapes]
        self._cache = Cache(layers=list(self._layers))

    @property
    def bytes(self) -> int:
        """Device memory it takes."""
        return sum(layer.bytes for layer in self._layers)

    def held(self, slot: int, tokens: int) -> list[torch.Tensor]:
        """Keys and values of each layer that has its own, `[heads, tokens, dim]`."""
        return [
            store[slot, :, :tokens]
            for layer in self._layers
            if layer.is_initialized
            for store in (layer.keys, layer.values)
        ]

    @contextmanager
    def at(self, place: Place) -> Iterator[Cache]:
        """The cache for one forward. Afterwards no tensor of the place is held: a graph's memory must not be."""
        for layer in self._layers:
            layer.place = place
        try:
            yield self._cache
        finally:
            for layer in self._layers:
                layer.place = None


def slot_bytes(shapes: tuple[LayerShape | None, ...], context: int, dtype: torch.dtype) -> int:
    """What one slot of `context` positions takes, in bytes."""
    per_token = sum(shape.heads * (shape.k_dim + shape.v_dim) for shape in shapes if shape is not None)
    return per_token * dtype.itemsize * context
