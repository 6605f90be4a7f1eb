"""Tiny random checkpoints, made on the spot: folders that both `transformers` and the engine load.

The same family, sizes and seed give the same weights in a GGUF file (tests.gguf_checkpoints), so the two compare.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.architecture import Architecture, LinearRope, Llama3Rope, RopeScaling
from engine.checkpoint.layout import expected_shapes

Family = str  # a key of ARCHITECTURES

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_ROPE = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "One player, one listener: the quartet is out, and the soloist plays on.",
    "the cat sat on the mat and the dog lay by the door while the rain fell",
    "def play(note): return note + 1  # 0 1 2 3 4 5 6 7 8 9",
    "Was ist das? C'est la vie. ¿Qué tal? 안녕하세요 你好",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a decoder. `vocabulary` None is the tokenizer's own; more rows than that are padding."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn_width: int = 128
    vocabulary: int | None = None
    context: int = 256


TINY = Sizes()


def tiny_architecture(
    family: str = "llama",
    *,
    sizes: Sizes = TINY,
    tied: bool = True,
    rope: RopeScaling | None = None,
    rope_base: float = 10_000.0,
) -> Architecture:
    """The decoder that the writers below write."""
    return Architecture(
        family=family,
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        ffn_width=sizes.ffn_width,
        vocabulary=sizes.vocabulary or tiny_tokenizer().get_vocab_size(),
        context=sizes.context,
        norm_eps=1e-5,
        rope_base=rope_base,
        rope_scaling=rope,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_head=tied,
    )


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE of 320 tokens: three special ones, 256 bytes, and merges learnt from a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def random_tensors(architecture: Architecture, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor of the decoder, float32, at a scale that makes answers vary. Norms are near one but not one."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(architecture).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensors[name] = 1 + 0.2 * noise
        elif len(shape) == 1:
            tensors[name] = 0.2 * noise
        else:
            tensors[name] = noise / shape[1] ** 0.5
    return tensors


def write_tiny_folder(
    path: Path,
    family: str = "llama",
    *,
    sizes: Sizes = TINY,
    tied: bool = True,
    rope: Llama3Rope | LinearRope | None = None,
    old_rope_spelling: bool = False,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    seed: int = 0,
    tensors: dict[str, torch.Tensor] | None = None,
    **overrides: Any,
) -> Path:
    """Write a model folder at `path` and return it. `overrides` go into config.json; None takes an option out."""
    path.mkdir(parents=True, exist_ok=True)
    architecture = tiny_architecture(family, sizes=sizes, tied=tied, rope=rope)
    config = tiny_config(architecture, dtype, old_rope_spelling) | overrides
    _write_json(path / "config.json", {key: value for key, value in config.items() if value is not None})
    stored = {
        name: tensor.to(dtype)
        for name, tensor in (random_tensors(architecture, seed) if tensors is None else tensors).items()
    }
    write_safetensors(path, stored, shards)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
        },
    )
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_json(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0]})
    return path


def tiny_config(architecture: Architecture, dtype: torch.dtype, old_rope_spelling: bool = False) -> dict[str, Any]:
    """The config.json of `architecture`, with the rotary options in the new spelling or the old one."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[architecture.family]],
        "model_type": architecture.family,
        "hidden_act": "silu",
        "num_hidden_layers": architecture.layers,
        "hidden_size": architecture.width,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "intermediate_size": architecture.ffn_width,
        "vocab_size": architecture.vocabulary,
        "max_position_embeddings": architecture.context,
        "rms_norm_eps": architecture.norm_eps,
        "tie_word_embeddings": architecture.tied_head,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if architecture.family == "mistral":
        config["sliding_window"] = architecture.context
    scaling: dict[str, Any] = {"rope_type": "default"}
    match architecture.rope_scaling:
        case LinearRope(factor):
            scaling = {"rope_type": "linear", "factor": factor}
        case Llama3Rope() as rope:
            scaling = {
                "rope_type": "llama3",
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_context,
            }
    if not old_rope_spelling:
        return config | {"rope_parameters": {"rope_theta": architecture.rope_base} | scaling}
    old = {"rope_theta": architecture.rope_base}
    return config | old | ({} if scaling["rope_type"] == "default" else {"rope_scaling": scaling})


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    """Write `tensors` into `path` as model.safetensors, or as `shards` files and their index."""
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, path / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    write_index(path, weight_map, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))


def write_index(path: Path, weight_map: dict[str, str], total_bytes: int) -> None:
    """Write the index of a model in several files: tensor name -> file."""
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    _write_json(path / "model.safetensors.index.json", index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2))
