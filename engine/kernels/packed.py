"""Matrices as a GGUF file stores them: small integers in blocks, with a scale a block. Kept for steps of one row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK_ITEMS = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """`data` `[rows, columns / 32 * stored bytes of a block]` uint8, blocks of the GGUF type `kind`."""

    kind: str
    data: torch.Tensor

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return self.data.shape[0]

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return self.data.shape[1] // BLOCK_BYTES[self.kind]


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One decoder layer. The norms' weights `[width]` float32 stand apart: blocks take no factor in."""

    input_norm: torch.Tensor
    qkv: PackedMatrix
    out: PackedMatrix
    ffn_norm: torch.Tensor
    gate_up: PackedMatrix
    down: PackedMatrix


@dataclass(frozen=True, slots=True)
class PackedDecoder:
    """Every matrix of a decoder, rows in the order of DecoderWeights, and the norms before them."""

    layers: tuple[PackedLayer, ...]
    final_norm: torch.Tensor
    head: PackedMatrix

    @property
    def bytes(self) -> int:
        """What one step of one row reads of it."""
        matrices = (m for layer in self.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down))
        return sum(matrix.data.nbytes for matrix in (*matrices, self.head))
