"""The stages of a step in plain torch: the twin that every fast kernel is compared with, and the path of the CPU.

Activations have the weights' type; the residual stream and all norms are float32. On CUDA nothing here reads a value
back, so a step of these can be captured. On the CPU the slot and the length are read on the host, which costs nothing.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear, SlotTable


def rms_norm(x: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """x `[R, K]` float32 over its root mean square, as `dtype`. The weight is folded into the matrix that follows."""
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(dtype)


def head_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of `[..., head_dim]` with a weight, computed in float32, returned in x's type (Qwen3's q and k)."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split order. x `[rows, heads, head_dim]`; cos, sin `[rows, head_dim // 2]` float32."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class PlainOps:
    """`engine.kernels.ops.Ops` in torch. `threads` splits one-row products on the CPU."""

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        self._on_cpu = device.type == "cpu"
        self._threads = threads

    def embed(self, embedding: torch.Tensor, table: SlotTable, x: torch.Tensor) -> None:
        """See Ops.embed."""
        token = table.token.index_select(0, table.active)
        x[:1].copy_(embedding.index_select(0, token))

    def norm_linear(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """See Ops.norm_linear."""
        out.copy_(self._linear(rms_norm(x, eps, linear.weight.dtype), linear))

    def linear_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        """See Ops.linear_residual."""
        residual.add_(self._linear(x, linear))

    def norm_gate_up(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """See Ops.norm_gate_up."""
        gate, up = self._linear(rms_norm(x, eps, linear.weight.dtype), linear).chunk(2, dim=-1)
        torch.mul(functional.silu(gate), up, out=out)

    def head(self, x: torch.Tensor, weights: DecoderWeights, eps: float, logits: torch.Tensor) -> None:
        """See Ops.head."""
        hidden = rms_norm(x, eps, torch.float32)
        if weights.final_norm is not None:
            hidden = hidden * weights.final_norm.float()
        logits.copy_(self._linear(hidden.to(weights.head.dtype), Linear(weights.head)))

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
        """See Ops.attend."""
        rows = qkv.shape[0]
        kv_heads, head_dim = cache.k.shape[1], cache.k.shape[3]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        q, k, v = qkv.view(rows, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = head_norm(q, layer.q_norm, eps), head_norm(k, layer.k_norm, eps)
        attend = self._attend_on_host if self._on_cpu else self._attend_on_device
        attended = attend(q, k, v, weights, cache, table, bucket)
        out.copy_(attended.view(kv_heads, heads // kv_heads, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, -1))

    def _attend_on_host(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        weights: DecoderWeights,
        cache: LayerCache,
        table: SlotTable,
        bucket: int,
    ) -> torch.Tensor:
        del bucket  # the true length is at hand
        rows, (kv_heads, head_dim) = q.shape[0], (k.shape[1], k.shape[2])
        slot = int(table.active)
        start = int(table.position[slot])
        end = start + rows
        cos, sin = weights.rope_cos[start:end], weights.rope_sin[start:end]
        keys, values = cache.k[slot], cache.v[slot]
        keys[:, start:end] = rotate(k, cos, sin).transpose(0, 1)
        values[:, start:end] = v.transpose(0, 1)
        grouped = rotate(q, cos, sin).transpose(0, 1).reshape(kv_heads, -1, head_dim)
        scores = torch.bmm(grouped, keys[:, :end].transpose(1, 2)).float().mul_(head_dim**-0.5)
        if rows > 1:
            late = torch.ones(rows, end, dtype=torch.bool).triu_(start + 1)
            scores = scores.view(kv_heads, -1, rows, end).masked_fill(late, float("-inf")).view(kv_heads, -1, end)
        return torch.bmm(torch.softmax(scores, dim=-1).to(values.dtype), values[:, :end])

    def _attend_on_device(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        weights: DecoderWeights,
        cache: LayerCache,
        table: SlotTable,
        bucket: int,
    ) -> torch.Tensor:
        rows, (kv_heads, head_dim) = q.shape[0], (k.shape[1], k.shape[2])
        rows_range = torch.arange(rows, device=q.device)
        positions = table.position.index_select(0, table.active) + rows_range
        cos, sin = weights.rope_cos.index_select(0, positions), weights.rope_sin.index_select(0, positions)
        heads_range = torch.arange(kv_heads, device=q.device)
        where = (table.active.view(1, 1), positions.view(rows, 1), heads_range.view(1, kv_heads))
        # Indexing [slots, context, kv_heads, head_dim] views keeps the three index tensors adjacent.
        cache.k.transpose(1, 2).index_put_(where, rotate(k, cos, sin))
        cache.v.transpose(1, 2).index_put_(where, v)
        keys = cache.k.narrow(2, 0, bucket).index_select(0, table.active)
        values = cache.v.narrow(2, 0, bucket).index_select(0, table.active)
        grouped = rotate(q, cos, sin).transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
        seen = torch.arange(bucket, device=q.device).view(1, bucket) <= positions.view(rows, 1)
        mask = seen.repeat(grouped.shape[2] // rows, 1).view(1, 1, -1, bucket)
        return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)[0]

    def _linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """x `[R, K]` @ weight `[N, K]`.T + bias.

        One row on the CPU is a batched product, one batch entry a thread: torch's own one-row product of float32 keeps
        to a single thread. The row goes first: weight first is up to three times slower with MKL.
        """
        weight, parts = linear.weight, self._threads
        if not self._on_cpu or x.shape[0] > 1 or parts == 1 or weight.shape[0] % parts:
            return functional.linear(x, weight, linear.bias)
        split = weight.view(parts, -1, weight.shape[1]).transpose(1, 2)
        product = torch.bmm(x.view(1, 1, -1).expand(parts, 1, -1), split).view(1, -1)
        return product if linear.bias is None else product + linear.bias
