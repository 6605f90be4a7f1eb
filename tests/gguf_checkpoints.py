"""Tiny random GGUF files: the models of tests.checkpoints in the other form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch

from engine.architecture import Architecture, LinearRope
from tests.checkpoints import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    TINY,
    Sizes,
    random_tensors,
    tiny_architecture,
    tiny_tokenizer,
)


def write_tiny_gguf(
    path: Path,
    family: str = "llama",
    *,
    sizes: Sizes = TINY,
    tied: bool = True,
    rope: LinearRope | None = None,
    rope_factors: tuple[float, ...] | None = None,
    quantisation: str = "F32",
    seed: int = 0,
    tensors: dict[str, torch.Tensor] | None = None,
    integers: Mapping[str, int] = MappingProxyType({}),
) -> Path:
    """Write a GGUF file at `path` and return it. Matrices take the type `quantisation`: F32, F16, BF16, Q4_0, Q4_1,
    Q5_0, Q5_1 or Q8_0. `integers` adds or replaces metadata.
    """
    architecture = tiny_architecture(family, sizes=sizes, tied=tied)
    writer = gguf.GGUFWriter(path, family)
    sizes_by_key = {
        f"{family}.block_count": architecture.layers,
        f"{family}.context_length": architecture.context,
        f"{family}.embedding_length": architecture.width,
        f"{family}.feed_forward_length": architecture.ffn_width,
        f"{family}.attention.head_count": architecture.heads,
        f"{family}.attention.head_count_kv": architecture.kv_heads,
        f"{family}.attention.key_length": architecture.head_dim,
        f"{family}.attention.value_length": architecture.head_dim,
        f"{family}.rope.dimension_count": architecture.head_dim,
        f"{family}.vocab_size": architecture.vocabulary,
    }
    for key, value in (sizes_by_key | dict(integers)).items():
        writer.add_uint32(key, value)
    writer.add_layer_norm_rms_eps(architecture.norm_eps)
    writer.add_rope_freq_base(architecture.rope_base)
    if rope is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.factor)
    _add_tokenizer(writer, architecture.vocabulary)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, dtype=np.float32))
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, tensor in (random_tensors(architecture, seed) if tensors is None else tensors).items():
        data = _interleaved(name, tensor, architecture).contiguous().numpy()
        if tensor.dim() == 1:
            writer.add_tensor(gguf_name(name), data)
        else:
            writer.add_tensor(gguf_name(name), gguf.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The GGUF name of a canonical tensor name."""
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    _, _, layer, inner = name.split(".", 3)
    for canonical, short in (
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        inner = inner.replace(canonical, short)
    return f"blk.{layer}.{inner}"


def _add_tokenizer(writer: Any, vocabulary: int) -> None:
    state = json.loads(tiny_tokenizer().to_str())
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    tokens += [f"[PAD{index}]" for index in range(len(tokens), vocabulary)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 5 if token.startswith("[PAD") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleaved(name: str, tensor: torch.Tensor, architecture: Architecture) -> torch.Tensor:
    """q and k rows in the order in which `llama` files keep them: the two halves of each head side by side."""
    heads = {"q_proj.weight": architecture.heads, "k_proj.weight": architecture.kv_heads}.get(name[-13:])
    if heads is None or architecture.family != "llama":
        return tensor
    halves = tensor.view(heads, 2, architecture.head_dim // 2, -1)
    return halves.transpose(1, 2).reshape(tensor.shape)
