"""A context's keys and values in host memory, and back into any slot: copies, so that no bit of them changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache import Context, Slots
from engine.history import Segment


@dataclass(frozen=True, slots=True)
class SavedContext:
    """What a context held. `parts` are its keys and values, on the host; `bytes` is the memory that they take."""

    tokens: tuple[int, ...]
    segments: tuple[Segment, ...]
    parts: tuple[torch.Tensor, ...]
    bytes: int


@torch.inference_mode()
def save(cache: Slots, context: Context) -> SavedContext:
    """Copy what `context` holds to the host, and wait for it. The context stays as it is."""
    held = cache.held(context.slot, len(context.ids))
    parts = tuple(_on_host(view) for view in held)
    _wait(held)
    return SavedContext(context.tokens, tuple(context.segments), parts, sum(map(_taken, parts)))


@torch.inference_mode()
def restore(cache: Slots, saved: SavedContext) -> Context:
    """Put what was saved into a free slot. Raises StepError where none is free."""
    context = cache.open_context()
    try:
        held = cache.held(context.slot, len(saved.tokens))
        for view, part in zip(held, saved.parts, strict=True):
            view.copy_(part, non_blocking=True)
        _wait(held)  # the host's copy may be dropped now
    except BaseException:
        context.close()
        raise
    context.ids.extend(saved.tokens)
    context.segments.extend(saved.segments)
    return context


def _on_host(view: torch.Tensor) -> torch.Tensor:
    """A copy of `view`, pinned where it comes from a device and the system lets us: that is several times quicker."""
    if view.device.type == "cpu":
        return view.clone(memory_format=torch.contiguous_format)
    try:
        part = torch.empty(view.shape, dtype=view.dtype, pin_memory=True)
    except RuntimeError:
        part = torch.empty(view.shape, dtype=view.dtype)
    return part.copy_(view, non_blocking=True)


def _taken(part: torch.Tensor) -> int:
    """Bytes: pinned memory is handed out in powers of two."""
    return 1 << (part.nbytes - 1).bit_length() if part.nbytes and part.is_pinned() else part.nbytes


def _wait(views: Sequence[torch.Tensor]) -> None:
    if views and views[0].device.type == "cuda":
        torch.cuda.current_stream().synchronize()
