"""Which tensors a decoder is made of, by their canonical names, and the check that a checkpoint has just those."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.architecture import Architecture
from engine.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# What a configuration may ask for at most; far above every published model of these families.
MAX_CONTEXT = 1 << 24
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20

# Buffers that old exporters saved beside the weights. They are recomputed from the configuration.
_BUFFERS = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def layer_prefix(layer: int) -> str:
    """What the names of one layer's tensors begin with."""
    return f"model.layers.{layer}."


def expected_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the decoder, layer by layer."""
    width, head_dim = architecture.width, architecture.head_dim
    q_rows, kv_rows = architecture.heads * head_dim, architecture.kv_heads * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (q_rows, width),
        "self_attn.k_proj.weight": (kv_rows, width),
        "self_attn.v_proj.weight": (kv_rows, width),
        "self_attn.o_proj.weight": (width, q_rows),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (architecture.ffn_width, width),
        "mlp.up_proj.weight": (architecture.ffn_width, width),
        "mlp.down_proj.weight": (width, architecture.ffn_width),
    }
    if architecture.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (q_rows,), "self_attn.k_proj.bias": (kv_rows,)}
        layer |= {"self_attn.v_proj.bias": (kv_rows,)}
    if architecture.qk_norm:
        layer |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (architecture.vocabulary, width), FINAL_NORM: (width,)}
    for index in range(architecture.layers):
        shapes |= {layer_prefix(index) + name: shape for name, shape in layer.items()}
    if not architecture.tied_head:
        shapes[HEAD] = (architecture.vocabulary, width)
    return shapes


def is_unused(name: str, architecture: Architecture) -> bool:
    """Whether a tensor is known, and rightly left alone: a saved buffer, or a copy of a tied head."""
    return _BUFFERS.fullmatch(name) is not None or (architecture.tied_head and name == HEAD)


def check_layout(where: str, architecture: Architecture, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError, by name, for a tensor of `found` that is misshapen or nobody's, and for one that lacks."""
    expected = expected_shapes(architecture)
    for name, shape in found.items():
        if name in expected and shape != expected[name]:
            raise CheckpointError(
                f"{where}: the tensor {name!a} has the shape {list(shape)}; "
                f"the configuration asks for {list(expected[name])}"
            )
        if name not in expected and not is_unused(name, architecture):
            raise CheckpointError(f"{where}: no part of a {architecture.family} decoder uses the tensor {name!a}")
    missing = [name for name in expected if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{where}: the tensor {missing[0]}{more} is missing")
