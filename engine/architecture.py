"""What differs between the native decoders, as data. The decoder itself is engine.model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """The `llama3` stretch of rotary frequencies (Llama 3.1 and later)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Linear position interpolation: every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """A divisor for each rotary frequency, `head_dim // 2` of them: how GGUF files carry the `llama3` stretch."""

    factors: tuple[float, ...]


RopeScaling = Llama3Rope | LinearRope | RopeFactors


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape and options of one decoder.

    Attributes:
        family: `llama`, `mistral`, `qwen2`, `qwen3` (SmolLM2 is `llama`).
        layers, width, heads, kv_heads, head_dim, ffn_width, vocabulary: sizes.
        context: positions the model was made for, tokens.
        norm_eps: epsilon of every RMS norm.
        rope_base: base of the rotary frequencies.
        rope_scaling: how the rotary frequencies are stretched, None where they are not.
        qkv_bias: q, k, v have a bias (Qwen2).
        qk_norm: q and k pass an RMS norm over head_dim before rotation (Qwen3).
        tied_head: the output head is the embedding.
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    vocabulary: int
    context: int
    norm_eps: float
    rope_base: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused q, k, v matrix: q first, then k, then v."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class GenericArchitecture:
    """A decoder that transformers plays: what the engine has to know of it.

    Attributes:
        family: the class in transformers, e.g. `GPT2LMHeadModel`.
        layers, vocabulary: sizes.
        context: positions the model was made for, tokens.
        why: why the native decoder does not play it.
    """

    family: str
    layers: int
    vocabulary: int
    context: int
    why: str = field(repr=False)  # names a path, and is no part of the numerics
