"""Tiny random checkpoints of architectures that have no native decoder, made and saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.checkpoints import CHAT_TEMPLATE, tiny_tokenizer

CONTEXT = 300  # buckets 256, 300
_IDS = {"vocab_size": 320, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT}
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
}
# Learned positions; a rotary quarter of each head; one head of keys and scaled embeddings; sliding and full layers
# that share nothing; and one whose attention takes no fixed length.
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gpt_neox": _SIZES,
    "gemma": _SIZES | {"num_key_value_heads": 1, "head_dim": 24},
    "qwen2": _SIZES
    | {"num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 60, "max_window_layers": 1},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "max_position_embeddings": CONTEXT,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 64,
    },
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2},
    "bert": _SIZES,
}


def write_generic_folder(path: Path, kind: str, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of `kind`, a key of KINDS or a model type with all options given, at `path` and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **_IDS, **(KINDS.get(kind, _SIZES) | overrides))
    model = AutoModelForCausalLM.from_config(config).to(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():  # larger than transformers draws them, so that answers vary
            if parameter.dim() > 1:
                parameter.normal_(0.0, 2 / parameter.shape[-1] ** 0.5, generator=generator)
    model.save_pretrained(path)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return path
