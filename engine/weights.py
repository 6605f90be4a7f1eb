"""Weights from a checkpoint to the device: fused where they are used together, norms folded in, one tensor at a time.

The RMS norm in front of a matrix scales that matrix's columns, so its weight is multiplied into them once, in float32
with a single rounding, and no step ever reads it. Host memory holds one stored tensor; the device one chunk more than
the weights themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.architecture import Architecture
from engine.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, expected_shapes, is_unused, layer_prefix
from engine.checkpoint.source import Checkpoint
from engine.errors import CheckpointError, DeviceError
from engine.events import Listener, Progress, ignore
from engine.kernels.ops import DecoderWeights, LayerWeights, Linear
from engine.packing import Packing
from engine.rope import rotary_tables

_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stored tensor goes: rows of a device tensor, with the norm whose weight is folded into its columns."""

    target: Tensor
    norm: str | None = None


def load_weights(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    context: int,
    listener: Listener = ignore,
    *,
    packed: bool = False,
) -> DecoderWeights:
    """Load every tensor of `checkpoint` as `dtype` onto `device`, with rotary tables for `context` positions.

    `packed` also keeps the stored blocks, where every matrix has a type that steps can be played from.

    Tells `listener` how many stored bytes are done. Raises CheckpointError, by name, for a tensor that is missing,
    misshapen, or that nobody uses; DeviceError where the device has no room.
    """
    architecture = checkpoint.architecture
    try:
        weights = _allocate(architecture, device, dtype, context)
        packing = Packing(architecture) if packed else None
        _fill(checkpoint, weights, listener, packing)
    except torch.OutOfMemoryError as error:
        need = expected_bytes(architecture, dtype) / 2**30
        raise DeviceError(
            f"{checkpoint.name}: {device} has no room for the weights; they take {need:.1f} GiB"
        ) from error
    return weights if packing is None else replace(weights, packed=packing.finish())


def expected_bytes(architecture: Architecture, dtype: torch.dtype) -> int:
    """Bytes that the weights take on the device as `dtype`, without the rotary tables."""
    return sum(math.prod(shape) for shape in expected_shapes(architecture).values()) * dtype.itemsize


def random_weights(
    architecture: Architecture, device: torch.device, dtype: torch.dtype, context: int, seed: int
) -> DecoderWeights:
    """Weights of the right shapes for measuring speed, drawn on the device, at a scale that keeps every sum finite."""
    weights = _allocate(architecture, device, dtype, context)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(linear: Linear, share: float = 1.0) -> None:
        linear.weight.normal_(0.0, share / math.sqrt(linear.weight.shape[1]), generator=generator)
        if linear.bias is not None:
            linear.bias.normal_(0.0, 0.02, generator=generator)

    # Each layer adds two terms to the residual stream; scaled so, the stream stays near one however deep it is.
    residual_share = 1 / math.sqrt(2 * architecture.layers)
    weights.embedding.normal_(0.0, 1 / math.sqrt(architecture.width), generator=generator)
    if weights.head is not weights.embedding:
        weights.head.normal_(0.0, 1 / math.sqrt(architecture.width), generator=generator)
    for norm in (weights.final_norm, *(n for layer in weights.layers for n in (layer.q_norm, layer.k_norm))):
        if norm is not None:
            norm.fill_(1.0)
    for layer in weights.layers:
        draw(layer.qkv)
        draw(layer.out, residual_share)
        draw(layer.gate_up)
        draw(layer.down, residual_share)
    return weights


def _allocate(architecture: Architecture, device: torch.device, dtype: torch.dtype, context: int) -> DecoderWeights:
    """Every tensor of the decoder, unfilled but for the rotary tables."""

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def layer() -> LayerWeights:
        return LayerWeights(
            qkv=Linear(
                new(architecture.qkv_rows, architecture.width),
                new(architecture.qkv_rows) if architecture.qkv_bias else None,
            ),
            q_norm=new(architecture.head_dim) if architecture.qk_norm else None,
            k_norm=new(architecture.head_dim) if architecture.qk_norm else None,
            out=Linear(new(architecture.width, architecture.heads * architecture.head_dim)),
            gate_up=Linear(new(2 * architecture.ffn_width, architecture.width)),
            down=Linear(new(architecture.width, architecture.ffn_width)),
        )

    embedding = new(architecture.vocabulary, architecture.width)
    cos, sin = rotary_tables(architecture, context)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(architecture.layers)),
        final_norm=new(architecture.width) if architecture.tied_head else None,
        head=embedding if architecture.tied_head else new(architecture.vocabulary, architecture.width),
        rope_cos=cos.to(device),
        rope_sin=sin.to(device),
    )


def _places(architecture: Architecture, weights: DecoderWeights) -> dict[str, _Place]:
    """For every stored tensor but the folded norms, where it goes."""
    places = {EMBEDDING: _Place(weights.embedding)}
    if weights.final_norm is not None:
        places[FINAL_NORM] = _Place(weights.final_norm)
    else:
        places[HEAD] = _Place(weights.head, FINAL_NORM)
    q_rows, kv_rows = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
    for index, layer in enumerate(weights.layers):
        prefix = layer_prefix(index)
        input_norm, ffn_norm = f"{prefix}input_layernorm.weight", f"{prefix}post_attention_layernorm.weight"
        for name, rows in zip("qkv", layer.qkv.weight.split((q_rows, kv_rows, kv_rows)), strict=True):
            places[f"{prefix}self_attn.{name}_proj.weight"] = _Place(rows, input_norm)
        if layer.qkv.bias is not None:
            for name, rows in zip("qkv", layer.qkv.bias.split((q_rows, kv_rows, kv_rows)), strict=True):
                places[f"{prefix}self_attn.{name}_proj.bias"] = _Place(rows)
        if layer.q_norm is not None and layer.k_norm is not None:
            places[f"{prefix}self_attn.q_norm.weight"] = _Place(layer.q_norm)
            places[f"{prefix}self_attn.k_norm.weight"] = _Place(layer.k_norm)
        places[f"{prefix}self_attn.o_proj.weight"] = _Place(layer.out.weight)
        for name, rows in zip(("gate", "up"), layer.gate_up.weight.chunk(2), strict=True):
            places[f"{prefix}mlp.{name}_proj.weight"] = _Place(rows, ffn_norm)
        places[f"{prefix}mlp.down_proj.weight"] = _Place(layer.down.weight)
    return places


def _fill(checkpoint: Checkpoint, weights: DecoderWeights, listener: Listener, packing: Packing | None) -> None:
    """Copy every stored tensor to its place. Norms come before the matrices they are folded into."""
    architecture = checkpoint.architecture
    shapes, places = expected_shapes(architecture), _places(architecture, weights)
    to_fold = {place.norm for place in places.values()} - {None}
    norms: dict[str, Tensor] = {}
    seen: set[str] = set()
    done = 0
    for stored in checkpoint.tensors():
        name = stored.name
        if name in shapes:
            if tuple(stored.data.shape) != shapes[name]:
                raise CheckpointError(
                    f"{checkpoint.name}: the tensor {name} has the shape {list(stored.data.shape)}; "
                    f"{list(shapes[name])} is wanted"
                )
            if name in seen:
                raise CheckpointError(f"{checkpoint.name}: the tensor {name} is there twice")
            if name in to_fold:
                norms[name] = stored.data.to(weights.embedding.device, torch.float32, copy=True)
            else:
                _copy(checkpoint.name, name, stored.data, places[name], norms)
            if packing is not None:
                packing.take(stored)
            seen.add(name)
        elif not is_unused(name, architecture):
            raise CheckpointError(
                f"{checkpoint.name}: no part of a {architecture.family} decoder uses the tensor {name!a}"
            )
        done += stored.stored_bytes
        listener(Progress("load", done, checkpoint.total_bytes, "bytes"))
    missing = [name for name in shapes if name not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{checkpoint.name}: the tensor {missing[0]}{more} is missing")


def _copy(where: str, name: str, data: Tensor, place: _Place, norms: dict[str, Tensor]) -> None:
    """Copy `data` to its place, a chunk of rows at a time, converting and folding on the device."""
    norm = None
    if place.norm is not None:
        norm = norms.get(place.norm)
        if norm is None:
            raise CheckpointError(f"{where}: the tensor {name} came before {place.norm}, or that one is missing")
    rows = max(1, _CHUNK_BYTES // max(1, data[0].numel() * data.element_size()))
    for start in range(0, data.shape[0], rows):
        chunk = data[start : start + rows].to(place.target.device)
        place.target[start : start + rows].copy_(chunk if norm is None else chunk.float() * norm)
