"""Prefill on CUDA: chunks padded to a few fixed sizes, each of them a captured graph.

The layers of a chunk are matrix products of the vendor's library with the kernels of `engine.kernels.chunk` between
them. Slot, start, count and ids are device data, so a chunk is one copy and one replay. Eager and captured run the same
body.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.architecture import Architecture
from engine.kernels import chunk
from engine.kernels.ops import Linear
from engine.model import Decoder
from engine.shapes import ChunkShape, chunk_shapes


class ChunkPrefill:
    """Fixed buffers of the largest chunk, and the body that plays on their first rows."""

    def __init__(self, decoder: Decoder, most: int) -> None:
        a, device = decoder.architecture, decoder.buffers.x.device
        dtype = decoder.weights.embedding.dtype
        self._decoder = decoder
        self.shapes = chunk_shapes(most)
        # One copy brings a chunk to the device: slot, start, count, then the ids.
        self._packed = torch.zeros(3 + most, dtype=torch.int64, device=device)
        self._place = chunk.ChunkPlace(self._packed[0:1], self._packed[1:2], self._packed[2:3])
        self._ids = self._packed[3:]
        self._x = torch.zeros(most, a.width, dtype=torch.float32, device=device)
        columns = (a.width, a.qkv_rows, a.heads * a.head_dim, a.width, 2 * a.ffn_width, a.ffn_width)
        self._activations = tuple(torch.zeros(most, n, dtype=dtype, device=device) for n in columns)
        self._scratch = {shape: _scratch(a, shape.rows, device) for shape in self.shapes}

    def shape_for(self, tokens: int) -> ChunkShape:
        """The smallest shape that holds `tokens`."""
        return next(shape for shape in self.shapes if shape.rows >= tokens)

    def place(self, slot: int, start: int, ids: Sequence[int]) -> None:
        """Say what the next chunk is: ids at positions start, start + 1, ... of a slot."""
        packed = torch.tensor([slot, start, len(ids), *ids], dtype=torch.int64)
        self._packed[: packed.shape[0]].copy_(packed)

    def run(self, shape: ChunkShape) -> None:
        """Fill the cache with the keys and values of the chunk that was placed. Reads no value back."""
        a, w, eps = self._decoder.architecture, self._decoder.weights, self._decoder.architecture.norm_eps
        rows = shape.rows
        x = self._x[:rows]
        normed, qkv, attended, delta, gate_up, hidden = (buffer[:rows] for buffer in self._activations)
        x.copy_(w.embedding.index_select(0, self._ids[:rows]))
        pending = None
        for index, (layer, cache) in enumerate(zip(w.layers, self._decoder.cache.layers, strict=True)):
            chunk.add_norm(x, pending, eps, normed)
            _product(normed, layer.qkv, qkv)
            chunk.rotate_and_write(qkv, layer, w, cache, self._place, eps)
            if index == a.layers - 1:
                return  # nothing after the last keys and values is asked for
            chunk.attend(qkv, cache, self._place, attended, self._scratch[shape])
            _product(attended, layer.out, delta)
            chunk.add_norm(x, delta, eps, normed)
            _product(normed, layer.gate_up, gate_up)
            chunk.swiglu(gate_up, hidden)
            _product(hidden, layer.down, delta)
            pending = delta


def _product(x: torch.Tensor, linear: Linear, out: torch.Tensor) -> None:
    """out `[P, N]` = x `[P, K]` @ weight.T + bias."""
    if linear.bias is None:
        torch.mm(x, linear.weight.t(), out=out)
    else:
        torch.addmm(linear.bias, x, linear.weight.t(), out=out)


def _scratch(a: Architecture, rows: int, device: torch.device) -> chunk.ChunkScratch:
    return chunk.ChunkScratch.allocate(rows, a.heads, a.kv_heads, a.head_dim, device)
