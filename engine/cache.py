"""The static KV cache: one tensor, cut into slots; and the record of what each slot holds and how it was made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.architecture import Architecture
from engine.errors import StepError
from engine.history import Made, Segment, cut
from engine.kernels.ops import LayerCache


@dataclass(slots=True)
class Context:
    """What one slot holds: `tokens`, the ids whose keys and values are cached, and `segments`, how those were made."""

    slot: int
    _release: Callable[[Context], None]
    ids: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    closed: bool = False
    busy: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids held, oldest first."""
        return tuple(self.ids)

    def shared_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Length of the longest common prefix of what is held and `prompt_ids`."""
        held, asked = self.ids, list(prompt_ids)
        same, differ = 0, min(len(held), len(asked)) + 1
        if held[: differ - 1] == asked[: differ - 1]:
            return differ - 1  # the usual case; a loop over ids would cost the first token of a long chat a millisecond
        while differ - same > 1:
            middle = (same + differ) // 2
            if held[same:middle] == asked[same:middle]:
                same = middle
            else:
                differ = middle
        return same

    def keep(self, tokens: int) -> None:
        """Forget everything after the first `tokens` positions."""
        del self.ids[tokens:]
        self.segments = cut(self.segments, tokens)

    def append(self, made: Made, ids: Sequence[int], rows: int = 1) -> None:
        """Record positions just computed: the kept part of a prefill chunk of `rows` rows, or decoded ids."""
        self.ids.extend(ids)
        last = self.segments[-1] if self.segments else None
        if made is Made.DECODE and last is not None and last.made is Made.DECODE:
            self.segments[-1] = Segment(made, last.tokens + len(ids), 1)
        else:
            self.segments.append(Segment(made, len(ids), rows))

    def close(self) -> None:
        """Give the slot back. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self._release(self)


class Slots:
    """Which slots are free. The keys and values of a slot belong to the context that holds it."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))[::-1]
        self._open: dict[int, Context] = {}

    @property
    def bytes(self) -> int:
        """Device memory that keys and values take."""
        raise NotImplementedError

    def held(self, slot: int, tokens: int) -> list[torch.Tensor]:
        """Views of the keys and values of the slot's first `tokens` positions."""
        raise NotImplementedError

    @property
    def free_slots(self) -> int:
        """Slots that no context holds."""
        return len(self._free)

    def open_context(self) -> Context:
        """Take a free slot."""
        if not self._free:
            raise StepError("every KV slot is taken; close a context first or raise `slots`")
        context = Context(self._free.pop(), self._give_back)
        self._open[context.slot] = context
        return context

    def scratch(self, position: int) -> int | None:
        """A slot that nobody plays and that holds nothing at `position` or behind it: free, or of an idle context."""
        if self._free:
            return self._free[-1]
        idle = (slot for slot, held in self._open.items() if not held.busy and len(held.ids) <= position)
        return next(idle, None)

    def _give_back(self, context: Context) -> None:
        self._free.append(context.slot)
        del self._open[context.slot]


class KVCache(Slots):
    """Keys and values of all slots: `[layers, 2, slots, kv_heads, context, head_dim]`."""

    def __init__(
        self, architecture: Architecture, slots: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(slots)
        shape = (architecture.layers, 2, slots, architecture.kv_heads, context, architecture.head_dim)
        self.data = unwritten(shape, dtype, device)
        self.layers = tuple(LayerCache(self.data[i, 0], self.data[i, 1]) for i in range(architecture.layers))

    @property
    def bytes(self) -> int:
        """Device memory it takes."""
        return self.data.nbytes

    def held(self, slot: int, tokens: int) -> list[torch.Tensor]:
        """A view a layer, `[2, kv_heads, tokens, head_dim]`."""
        return list(self.data[:, :, slot, :, :tokens].unbind(0))


def unwritten(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Room for keys or values: zeros, not garbage, since masked positions get a zero weight, and 0 * NaN is NaN."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    # numpy leaves zero pages to the system until they are written; torch would touch them all now.
    room = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(room).view(dtype).view(*shape)


def cache_bytes(architecture: Architecture, slots: int, context: int, dtype: torch.dtype) -> int:
    """What a KVCache of this shape will take, in bytes."""
    per_token = 2 * architecture.layers * architecture.kv_heads * architecture.head_dim * dtype.itemsize
    return per_token * slots * context
