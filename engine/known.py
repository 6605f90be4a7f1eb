"""Keys and values of ids that are known already, several rows a step: how a broken answer is repeated quickly.

The layers run on R rows at consecutive positions of one slot. Row for row the bits are those of R steps of one row, so
the context is what decoding would have made it, for one reading of the weights instead of R. Nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.architecture import Architecture
from engine.model import Decoder
from engine.shapes import KnownShape


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations of R rows; see StepBuffers. ids `[R]` int64."""

    ids: torch.Tensor
    x: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    hidden: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, a: Architecture, dtype: torch.dtype, device: torch.device) -> _Rows:
        def activations(columns: int) -> torch.Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        return cls(
            ids=torch.zeros(rows, dtype=torch.int64, device=device),
            x=torch.zeros(rows, a.width, dtype=torch.float32, device=device),
            qkv=activations(a.qkv_rows),
            attended=activations(a.heads * a.head_dim),
            hidden=activations(a.ffn_width),
        )


class KnownRows:
    """Fixed buffers of each width, and the body that plays on them."""

    def __init__(self, decoder: Decoder, widths: Sequence[int]) -> None:
        a, device = decoder.architecture, decoder.buffers.x.device
        dtype = decoder.weights.embedding.dtype
        self._decoder = decoder
        self._buffers = {rows: _Rows.allocate(rows, a, dtype, device) for rows in widths}
        self.widths = tuple(sorted(widths, reverse=True))

    def width_for(self, tokens: int) -> int | None:
        """The widest step that `tokens` ids fill, or None."""
        return next((rows for rows in self.widths if rows <= tokens), None)

    def place(self, ids: Sequence[int]) -> None:
        """Say which ids the next step of their width reads."""
        self._buffers[len(ids)].ids.copy_(torch.tensor(ids, dtype=torch.int64))

    def run(self, shape: KnownShape) -> None:
        """Write keys and values of the placed ids at the active slot's position and after. Reads no value back."""
        b, d = self._buffers[shape.rows], self._decoder
        w, ops, slots, eps = d.weights, d.ops, d.buffers.slots, d.architecture.norm_eps
        b.x.copy_(w.embedding.index_select(0, b.ids))
        last = d.architecture.layers - 1
        for index, (layer, cache) in enumerate(zip(w.layers, d.cache.layers, strict=True)):
            ops.norm_linear(b.x, layer.qkv, eps, b.qkv)
            ops.attend(b.qkv, layer, w, cache, slots, shape.bucket, eps, b.attended)
            if index == last:
                return  # nothing after the last keys and values is asked for
            ops.linear_residual(b.attended, layer.out, b.x)
            ops.norm_gate_up(b.x, layer.gate_up, eps, b.hidden)
            ops.linear_residual(b.hidden, layer.down, b.x)
