"""Decoder shapes that decode is measured on, as data."""

from __future__ import annotations

from engine.architecture import Architecture


def _shape(
    layers: int,
    width: int,
    heads: tuple[int, int, int],
    ffn_width: int,
    vocabulary: int,
    *,
    tied: bool = False,
    qkv_bias: bool = False,
    qk_norm: bool = False,
) -> Architecture:
    family = "qwen3" if qk_norm else "qwen2" if qkv_bias else "llama"
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
        ffn_width=ffn_width,
        vocabulary=vocabulary,
        context=4352,
        norm_eps=1e-5,
        rope_base=10000.0,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied_head=tied,
    )


SHAPES: dict[str, Architecture] = {
    "llama-2-7b": _shape(32, 4096, (32, 32, 128), 11008, 32000),
    "llama-3.1-8b": _shape(32, 4096, (32, 8, 128), 14336, 128256),
    "llama-3.2-1b": _shape(16, 2048, (32, 8, 64), 8192, 128256, tied=True),
    "smollm2-135m": _shape(30, 576, (9, 3, 64), 1536, 49152, tied=True),
    "qwen2.5-7b": _shape(28, 3584, (28, 4, 128), 18944, 152064, qkv_bias=True),
    "qwen3-0.6b": _shape(28, 1024, (16, 8, 128), 3072, 151936, tied=True, qk_norm=True),
}


def bytes_per_token(a: Architecture, element_bytes: int = 2) -> int:
    """Weights that one token reads: every matrix with the head, without the input embedding."""
    layer = a.qkv_rows * a.width + a.width * a.heads * a.head_dim + 3 * a.ffn_width * a.width
    return element_bytes * (a.layers * layer + a.vocabulary * a.width)
