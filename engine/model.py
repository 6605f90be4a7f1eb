"""The decoder, top to bottom: one step of R rows in fixed buffers, and prefill of a chunk.

A step is the same code whether it runs eagerly or is captured: it takes its shape, reads and writes only
`StepBuffers`, the weights and the cache, and never looks at a value. Llama, Mistral, Qwen2, Qwen3 and SmolLM2 differ in
`Architecture` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.architecture import Architecture
from engine.cache import KVCache
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear, SlotTable
from engine.kernels.plain import head_norm, rms_norm, rotate
from engine.sampler import Choice, SamplerTable
from engine.shapes import StepShape
from engine.toolkit import Toolkit


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """All that a step touches beside weights and cache; W width, F ffn_width, V vocabulary, R rows.

    x `[R, W]` float32: the residual stream; on entry the embeddings of the rows' ids.
    qkv `[R, qkv_rows]`, attended `[R, heads * head_dim]`, hidden `[R, F]`: activations in the weights' type.
    logits `[R, V]` float32.
    """

    x: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor
    slots: SlotTable
    sampler: SamplerTable
    choice: Choice

    @classmethod
    def allocate(
        cls, architecture: Architecture, slots: int, ends: int, dtype: torch.dtype, device: torch.device, rows: int = 1
    ) -> StepBuffers:
        """Fresh buffers; `ends` is how many end tokens the model has."""
        a = architecture

        def activations(columns: int) -> torch.Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        return cls(
            x=torch.zeros(rows, a.width, dtype=torch.float32, device=device),
            qkv=activations(a.qkv_rows),
            attended=activations(a.heads * a.head_dim),
            hidden=activations(a.ffn_width),
            logits=torch.zeros(rows, a.vocabulary, dtype=torch.float32, device=device),
            slots=SlotTable.allocate(slots, device),
            sampler=SamplerTable.allocate(slots, a.vocabulary, ends, device),
            choice=Choice.allocate(device),
        )


class Decoder:
    """Weights, cache, buffers and the stages that play on them."""

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights,
        cache: KVCache,
        buffers: StepBuffers,
        toolkit: Toolkit,
    ) -> None:
        self.architecture = architecture
        self.cache = cache
        self.buffers = buffers
        self.ops = toolkit.ops
        self.toolkit_name = toolkit.name
        self.widths = toolkit.widths
        self._toolkit = toolkit
        self.use(weights)

    def use(self, weights: DecoderWeights) -> None:
        """Play with these weights from now on."""
        self.weights = weights
        eps = self.architecture.norm_eps
        whole = self._toolkit.whole
        self._whole = None if whole is None else whole(weights, self.buffers, self.cache, eps)
        self._ending = self._toolkit.ending(weights, self.buffers, eps)

    @property
    def packed_bytes(self) -> int | None:
        """What a step reads of the weights' stored blocks; None where it reads the matrices."""
        return None if self._whole is None or self.weights.packed is None else self.weights.packed.bytes

    def close(self) -> None:
        """Let threads of its own go."""
        if self._whole is not None:
            self._whole.close()

    def embed(self) -> None:
        """Put the embedding of the active slot's token into x, from which its next step starts."""
        self.ops.embed(self.weights.embedding, self.buffers.slots, self.buffers.x)

    def step(self, shape: StepShape) -> None:
        """Play the active slot's next token: layers, logits, choice, and the next step's embedding."""
        if self._whole is not None:
            self._whole.play()
            self._ending.conclude(shape.stages)
            return
        b, w, ops, eps = self.buffers, self.weights, self.ops, self.architecture.norm_eps
        for layer, cache in zip(w.layers, self.cache.layers, strict=True):
            ops.norm_linear(b.x, layer.qkv, eps, b.qkv)
            ops.attend(b.qkv, layer, w, cache, b.slots, shape.bucket, eps, b.attended)
            ops.linear_residual(b.attended, layer.out, b.x)
            ops.norm_gate_up(b.x, layer.gate_up, eps, b.hidden)
            ops.linear_residual(b.hidden, layer.down, b.x)
        self._ending.conclude(shape.stages)

    def prefill(self, slot: int, start: int, ids: torch.Tensor) -> None:
        """Fill the cache of `slot` with the keys and values of ids `[n]` int64 at positions start .. start + n - 1."""
        a, w = self.architecture, self.weights
        x = w.embedding.index_select(0, ids).float()
        end = start + ids.shape[0]
        cos, sin = w.rope_cos[start:end], w.rope_sin[start:end]
        mask = None
        if start:
            mask = torch.ones(end - start, end, dtype=torch.bool, device=ids.device).tril_(start)
        for index, (layer, cache) in enumerate(zip(w.layers, self.cache.layers, strict=True)):
            qkv = _linear(rms_norm(x, a.norm_eps, layer.qkv.weight.dtype), layer.qkv)
            q, k, v = self._project(qkv, layer, cos, sin)
            cache.k[slot, :, start:end] = k
            cache.v[slot, :, start:end] = v
            if index == a.layers - 1:
                return  # nothing after the last keys and values is asked for
            attended = self._attend(q, cache, slot, end, mask)
            x += _linear(attended, layer.out)
            gate, up = _linear(rms_norm(x, a.norm_eps, layer.gate_up.weight.dtype), layer.gate_up).chunk(2, dim=-1)
            x += _linear(functional.silu(gate).mul_(up), layer.down)

    def _project(
        self, qkv: torch.Tensor, layer: LayerWeights, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated q, k and v, `[heads, n, head_dim]` each."""
        a = self.architecture
        heads = (a.heads, a.kv_heads, a.kv_heads)
        q, k, v = qkv.view(qkv.shape[0], -1, a.head_dim).split(heads, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = head_norm(q, layer.q_norm, a.norm_eps), head_norm(k, layer.k_norm, a.norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)

    def _attend(
        self, q: torch.Tensor, cache: LayerCache, slot: int, end: int, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Causal attention of q `[heads, n, head_dim]` over `end` positions of the slot; `[n, heads * head_dim]`."""
        keys, values = cache.k[slot, :, :end], cache.v[slot, :, :end]
        attended = functional.scaled_dot_product_attention(
            q.unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).reshape(q.shape[1], -1)


def _linear(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    return functional.linear(x, linear.weight, linear.bias)
