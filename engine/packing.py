"""Keeping the blocks of a block-quantised checkpoint beside its float32 matrices, fused in the same way."""

from __future__ import annotations

import torch

from engine.architecture import Architecture
from engine.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from engine.checkpoint.source import StoredTensor
from engine.kernels.packed import BLOCK_BYTES, PackedDecoder, PackedLayer, PackedMatrix

_LANES = 16


class Packing:
    """Takes tensors as they arrive, and makes the packed decoder of them in the end."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._pieces: dict[str, PackedMatrix] = {}
        self._norms: dict[str, torch.Tensor] = {}

    def take(self, stored: StoredTensor) -> None:
        """Keep what will be asked for."""
        if stored.blocks is not None and stored.blocks.kind in BLOCK_BYTES:
            self._pieces[stored.name] = PackedMatrix(stored.blocks.kind, stored.blocks.data)
        elif stored.name.endswith("norm.weight"):
            self._norms[stored.name] = stored.data.to(torch.float32, copy=True)

    def finish(self) -> PackedDecoder | None:
        """The decoder; None where a matrix has another type, or matrices that are fused have two."""
        a = self._architecture
        if a.head_dim % _LANES or a.width % _LANES:
            return None
        layers = []
        for index in range(a.layers):
            prefix = layer_prefix(index)
            qkv = self._fuse(*(f"{prefix}self_attn.{name}_proj.weight" for name in "qkv"))
            out = self._fuse(f"{prefix}self_attn.o_proj.weight")
            gate_up = self._fuse(*(f"{prefix}mlp.{name}_proj.weight" for name in ("gate", "up")))
            down = self._fuse(f"{prefix}mlp.down_proj.weight")
            if qkv is None or out is None or gate_up is None or down is None:
                return None
            input_norm = self._norms[f"{prefix}input_layernorm.weight"]
            ffn_norm = self._norms[f"{prefix}post_attention_layernorm.weight"]
            layers.append(PackedLayer(input_norm, qkv, out, ffn_norm, gate_up, down))
        head = self._fuse(EMBEDDING if a.tied_head else HEAD)
        return None if head is None else PackedDecoder(tuple(layers), self._norms[FINAL_NORM], head)

    def _fuse(self, *names: str) -> PackedMatrix | None:
        """Matrices one below the other; their pieces are dropped."""
        pieces = [self._pieces.pop(name, None) for name in names]
        found = [piece for piece in pieces if piece is not None]
        if len(found) < len(pieces) or len({piece.kind for piece in found}) > 1:
            return None
        return found[0] if len(found) == 1 else PackedMatrix(found[0].kind, torch.cat([p.data for p in found]))
