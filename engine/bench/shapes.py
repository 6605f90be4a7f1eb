"""Published model shapes for runs on random weights, and how many bytes a decode step of one must read."""

from __future__ import annotations

from engine.architecture import Architecture, Llama3Rope

SHAPES = {
    "llama-2-7b": Architecture(
        family="llama",
        layers=32,
        width=4096,
        heads=32,
        kv_heads=32,
        head_dim=128,
        ffn_width=11008,
        vocabulary=32000,
        context=4096,
        norm_eps=1e-5,
        rope_base=10000.0,
    ),
    "llama-3.1-8b": Architecture(
        family="llama",
        layers=32,
        width=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn_width=14336,
        vocabulary=128256,
        context=131072,
        norm_eps=1e-5,
        rope_base=500000.0,
        rope_scaling=Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192),
    ),
    "llama-3.2-1b": Architecture(
        family="llama",
        layers=16,
        width=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn_width=8192,
        vocabulary=128256,
        context=131072,
        norm_eps=1e-5,
        rope_base=500000.0,
        rope_scaling=Llama3Rope(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192),
        tied_head=True,
    ),
    "smollm2-135m": Architecture(
        family="llama",
        layers=30,
        width=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn_width=1536,
        vocabulary=49152,
        context=8192,
        norm_eps=1e-5,
        rope_base=100000.0,
        tied_head=True,
    ),
    "qwen2.5-7b": Architecture(
        family="qwen2",
        layers=28,
        width=3584,
        heads=28,
        kv_heads=4,
        head_dim=128,
        ffn_width=18944,
        vocabulary=152064,
        context=32768,
        norm_eps=1e-6,
        rope_base=1000000.0,
        qkv_bias=True,
    ),
    "qwen3-0.6b": Architecture(
        family="qwen3",
        layers=28,
        width=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        ffn_width=3072,
        vocabulary=151936,
        context=40960,
        norm_eps=1e-6,
        rope_base=1000000.0,
        qk_norm=True,
        tied_head=True,
    ),
}


def weight_bytes(architecture: Architecture, element_bytes: int) -> int:
    """Bytes of weights that one decode step reads, at `element_bytes` a number: every matrix and the output head.

    The input embedding costs one row, which is left out; where it is tied it is counted as the head.
    """
    a = architecture
    attention = a.width * a.qkv_rows + a.heads * a.head_dim * a.width
    ffn = 3 * a.width * a.ffn_width
    bias = a.qkv_rows if a.qkv_bias else 0
    return (a.layers * (attention + ffn + bias) + a.vocabulary * a.width) * element_bytes


def cache_bytes(architecture: Architecture, element_bytes: int, tokens: float) -> int:
    """Bytes of keys and values that one decode step reads with `tokens` in the context."""
    a = architecture
    return round(2 * a.layers * a.kv_heads * a.head_dim * element_bytes * tokens)
