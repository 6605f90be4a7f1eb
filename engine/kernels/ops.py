"""The stages of one decode step, as a contract. `plain` is the twin in torch; `fused` is the same in Triton.

A step plays R rows: the next R tokens of the one active sequence, at consecutive positions. R is 1 while the answer is
made, more while known tokens are replayed. Row r's bits do not depend on R.

Types of the residual stream `x` and of every `out` are the buffers' own; sums are float32 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.packed import PackedDecoder


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight `[rows, columns]` and its bias `[rows]`, if it has one."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer, fused as it was loaded. The two RMS norms' weights are folded into `qkv` and `gate_up`.

    qkv `[(heads + 2 kv_heads) * head_dim, width]`: q rows, then k, then v. Half-split ("neox") rotary order.
    q_norm, k_norm `[head_dim]` or None. out `[width, heads * head_dim]`.
    gate_up `[2 ffn_width, width]`: gate rows, then up rows. down `[width, ffn_width]`.
    """

    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder.

    embedding `[vocabulary, width]`. head `[vocabulary, width]`, the embedding itself where tied.
    final_norm `[width]`, or None where it is folded into an untied head.
    rope_cos, rope_sin `[context, head_dim // 2]` float32.
    packed: the same matrices as the file's own blocks, where they were kept: what a step of one row reads on the CPU.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor | None
    head: torch.Tensor
    rope_cos: torch.Tensor
    rope_sin: torch.Tensor
    packed: PackedDecoder | None = None


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, `[slots, kv_heads, context, head_dim]` each."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Per-slot state of the sequences, all on the device; S slots. A step reads and writes the row `active`.

    active `[1]` int64: the slot that plays.
    token `[S]` int64: the id that the next step reads.
    position `[S]` int64: where that id goes, which is also the length of the context before it.
    stopped `[S]` bool: an end token was made; further steps change neither token nor position.
    """

    active: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor
    stopped: torch.Tensor

    @classmethod
    def allocate(cls, slots: int, device: torch.device) -> SlotTable:
        """A table of slots that read id 0 at position 0."""
        return cls(
            active=torch.zeros(1, dtype=torch.int64, device=device),
            token=torch.zeros(slots, dtype=torch.int64, device=device),
            position=torch.zeros(slots, dtype=torch.int64, device=device),
            stopped=torch.zeros(slots, dtype=torch.bool, device=device),
        )


class Ops(Protocol):
    """One step is: for each layer norm_linear, attend, linear_residual, norm_gate_up, linear_residual; then head; then
    the sampler's choice; then `embed` of the chosen token, so that `x` is ready for the next step.
    """

    def embed(self, embedding: torch.Tensor, table: SlotTable, x: torch.Tensor) -> None:
        """x[0] = embedding[token[active]]; `x` is `[R, width]`."""

    def norm_linear(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """out `[R, N]` = rms_norm(x `[R, K]`) @ weight.T + bias."""

    def attend(
        self,
        qkv: torch.Tensor,
        layer: LayerWeights,
        weights: DecoderWeights,
        cache: LayerCache,
        table: SlotTable,
        bucket: int,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """Norm (where the layer has q_norm) and rotate q and k `[R, qkv_rows]`, write k and v of row r at
        position[active] + r, and attend: row r sees positions 0 .. position[active] + r, all below `bucket`.
        out `[R, heads * head_dim]`.
        """

    def linear_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        """residual `[R, N]` += x `[R, K]` @ weight.T, in place."""

    def norm_gate_up(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """out `[R, F]` = silu(gate) * up, where gate, up = halves of rms_norm(x) @ weight.T."""

    def head(self, x: torch.Tensor, weights: DecoderWeights, eps: float, logits: torch.Tensor) -> None:
        """logits `[R, vocabulary]` float32 = rms_norm(x) * final_norm @ head.T."""
