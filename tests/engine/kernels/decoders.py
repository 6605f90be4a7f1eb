"""Small decoders with random weights, and everything a step of one needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.architecture import Architecture
from engine.kernels.fused import FusedOps
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear, SlotTable
from engine.kernels.plain import PlainOps

TINY = Architecture(
    family="llama",
    layers=1,
    width=72,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_width=100,
    vocabulary=131,
    context=64,
    norm_eps=1e-5,
    rope_base=10000.0,
)


def shaped(**changes: object) -> Architecture:
    """TINY with some sizes changed."""
    return replace(TINY, **changes)  # type: ignore[arg-type]


def random_weights(a: Architecture, dtype: torch.dtype, device: torch.device, seed: int = 0) -> DecoderWeights:
    """Weights of a decoder, scaled so that activations stay near 1."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        noise = torch.randn(rows, columns, generator=generator).div_(columns**0.5)
        return noise.to(dtype).to(device)

    def vector(size: int) -> torch.Tensor:
        return (1.0 + 0.2 * torch.randn(size, generator=generator)).to(dtype).to(device)

    def layer() -> LayerWeights:
        return LayerWeights(
            qkv=Linear(matrix(a.qkv_rows, a.width), vector(a.qkv_rows) if a.qkv_bias else None),
            q_norm=vector(a.head_dim) if a.qk_norm else None,
            k_norm=vector(a.head_dim) if a.qk_norm else None,
            out=Linear(matrix(a.width, a.heads * a.head_dim)),
            gate_up=Linear(matrix(2 * a.ffn_width, a.width)),
            down=Linear(matrix(a.width, a.ffn_width)),
        )

    embedding = matrix(a.vocabulary, a.width)
    half = a.head_dim // 2
    angles = torch.outer(torch.arange(a.context).float(), a.rope_base ** (-torch.arange(half).float() / half))
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(a.layers)),
        final_norm=vector(a.width) if a.tied_head else None,
        head=embedding if a.tied_head else matrix(a.vocabulary, a.width),
        rope_cos=angles.cos().to(device),
        rope_sin=angles.sin().to(device),
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """A decoder at some point of an answer: slot 1 of 3 holds `position` tokens, everything else is poison."""

    architecture: Architecture
    weights: DecoderWeights
    cache: tuple[LayerCache, ...]
    table: SlotTable
    fused: FusedOps
    plain: PlainOps

    def copy_of_cache(self) -> tuple[LayerCache, ...]:
        """The cache as it is now."""
        return tuple(LayerCache(layer.k.clone(), layer.v.clone()) for layer in self.cache)


def scene(a: Architecture, position: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Scene:
    """A scene; keys and values past `position`, and those of other slots, are NaN."""
    generator = torch.Generator().manual_seed(position)

    def held() -> torch.Tensor:
        kept = torch.full((3, a.kv_heads, a.context, a.head_dim), float("nan"))
        kept[1, :, :position] = torch.randn(a.kv_heads, position, a.head_dim, generator=generator)
        return kept.to(dtype).to(device)

    table = SlotTable(
        active=torch.tensor([1], device=device),
        token=torch.tensor([0, 7, 0], device=device),
        position=torch.tensor([5, position, 3], device=device),
        stopped=torch.zeros(3, dtype=torch.bool, device=device),
    )
    return Scene(
        architecture=a,
        weights=random_weights(a, dtype, device),
        cache=tuple(LayerCache(held(), held()) for _ in range(a.layers)),
        table=table,
        fused=FusedOps(a, dtype, device),
        plain=PlainOps(device),
    )


def poisoned(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A buffer whose every element must be written."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)
