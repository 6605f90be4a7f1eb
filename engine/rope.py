"""Rotary tables. Computed on the CPU in float32, so that every device rotates by the same bits."""

from __future__ import annotations

import math

import torch

from engine.architecture import Architecture, LinearRope, Llama3Rope, RopeFactors


def rotary_tables(architecture: Architecture, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin `[context, head_dim // 2]` float32 of every position below `context`."""
    frequencies = inverse_frequencies(architecture)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def inverse_frequencies(architecture: Architecture) -> torch.Tensor:
    """Radians a position, `[head_dim // 2]` float32, stretched as the architecture asks."""
    steps = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32)
    plain = 1.0 / (architecture.rope_base ** (steps / architecture.head_dim))
    match architecture.rope_scaling:
        case None:
            return plain
        case LinearRope(factor):
            return plain / factor
        case RopeFactors(factors):
            return plain / torch.tensor(factors, dtype=torch.float32)
        case Llama3Rope() as rope:
            return _llama3(plain, rope)


def _llama3(plain: torch.Tensor, rope: Llama3Rope) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    longest, shortest = rope.original_context / rope.low_freq_factor, rope.original_context / rope.high_freq_factor
    waves = 2 * math.pi / plain
    stretched = torch.where(waves > longest, plain / rope.factor, plain)
    share = (rope.original_context / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * stretched / rope.factor + share * stretched
    return torch.where((waves >= shortest) & (waves <= longest), blended, stretched)
