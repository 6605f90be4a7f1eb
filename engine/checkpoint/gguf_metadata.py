"""What the metadata of a GGUF file says about the decoder, the tokenizer and the sampling. Every value is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.architecture import Architecture, LinearRope, RopeFactors
from engine.checkpoint.layout import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH
from engine.checkpoint.source import GenerationDefaults, GgufTokenizer
from engine.errors import CheckpointError, UnsupportedModelError

FAMILIES = ("llama", "qwen2", "qwen3")

# Control tokens that end a turn under their published names. Many files name only one of them as the EOS.
_END_TOKENS = frozenset(
    [
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "</s>",
    ]
)
_CONTROL = 3


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed access to the metadata of the file at `where`."""

    where: str
    values: Mapping[str, Any]

    def error(self, key: str, wanted: str) -> CheckpointError:
        """What to raise where the value of `key` is not `wanted`."""
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {ascii(value)[:80]}"
        return CheckpointError(f"{self.where}: {key} {found}; it must be {wanted}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in `low..high`."""
        value = self.values.get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"a whole number from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """The same, or None where the file does not say."""
        return self.integer(key, low, high) if key in self.values else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.values.get(key, default)
        if type(value) not in {int, float} or not math.isfinite(value) or value <= 0:
            raise self.error(key, "a finite number above 0")
        return float(value)

    def optional_flag(self, key: str) -> bool | None:
        """A boolean, or None where the file does not say."""
        value = self.values.get(key)
        if value is not None and type(value) is not bool:
            raise self.error(key, "a boolean")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self.values.get(key)
        if type(value) is not str:
            raise self.error(key, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None where the file does not say."""
        return self.text(key) if key in self.values else None

    def items(self, key: str, kind: type, lengths: tuple[int, ...]) -> tuple[Any, ...]:
        """An array of `kind` of one of `lengths`; empty where the file has none and that is allowed."""
        value = self.values.get(key, ())
        if type(value) is not tuple or len(value) not in lengths or (value and type(value[0]) is not kind):
            raise self.error(key, f"an array of {' or '.join(map(str, lengths))} items of type {kind.__name__}")
        return value


def read_architecture(
    metadata: Metadata, vocabulary: int, tied_head: bool, factors: tuple[float, ...] | None
) -> Architecture:
    """The decoder. `vocabulary` is the rows of the embedding; `factors` the content of `rope_freqs.weight`."""
    family = metadata.text("general.architecture")
    if family not in FAMILIES:
        raise UnsupportedModelError(
            f"{metadata.where}: the architecture {family!a} is not served from GGUF; served are {', '.join(FAMILIES)}"
        )

    def key(name: str) -> str:
        return f"{family}.{name}"

    if metadata.values.get(key("expert_count"), 0) != 0:
        raise UnsupportedModelError(
            f"{metadata.where}: {key('expert_count')} is set; mixtures of experts are not served"
        )
    width = metadata.integer(key("embedding_length"), 1, MAX_WIDTH)
    heads = metadata.integer(key("attention.head_count"), 1, MAX_WIDTH)
    kv_heads = metadata.integer(key("attention.head_count_kv"), 1, heads, heads)
    head_dim = metadata.integer(key("attention.key_length"), 2, MAX_WIDTH, width // heads)
    if heads % kv_heads or head_dim % 2:
        raise CheckpointError(f"{metadata.where}: {heads} heads of {head_dim} over {kv_heads} do not divide evenly")
    for name in ("attention.value_length", "rope.dimension_count"):
        if metadata.values.get(key(name), head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{metadata.where}: {key(name)} differs from the head size {head_dim}; that is not served"
            )
    context = metadata.integer(key("context_length"), 1, MAX_CONTEXT)
    window = metadata.optional_integer(key("attention.sliding_window"), 0, 1 << 32)
    return Architecture(
        family=family,
        layers=metadata.integer(key("block_count"), 1, MAX_LAYERS),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=metadata.integer(key("feed_forward_length"), 1, MAX_WIDTH),
        vocabulary=vocabulary,
        # Within the window every token sees all before it, so full attention is the same thing there.
        context=min(context, window) if window else context,
        norm_eps=metadata.number(key("attention.layer_norm_rms_epsilon")),
        rope_base=metadata.number(key("rope.freq_base"), 10_000.0),
        rope_scaling=_rope_scaling(metadata, family, factors),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_head=tied_head,
    )


def _rope_scaling(
    metadata: Metadata, family: str, factors: tuple[float, ...] | None
) -> LinearRope | RopeFactors | None:
    kind = metadata.optional_text(f"{family}.rope.scaling.type") or "none"
    if kind not in {"none", "linear"}:
        raise UnsupportedModelError(
            f"{metadata.where}: {family}.rope.scaling.type is {ascii(kind)[:80]}; served are none, linear and the "
            "factors of a tensor rope_freqs.weight"
        )
    if factors is not None:
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise CheckpointError(f"{metadata.where}: the tensor rope_freqs.weight holds a factor that is not above 0")
        return RopeFactors(factors)
    old_key = f"{family}.rope.scale_linear"
    factor = metadata.number(f"{family}.rope.scaling.factor" if kind == "linear" else old_key, 1.0)
    return None if factor == 1.0 else LinearRope(factor)


def read_tokenizer(metadata: Metadata, vocabulary: int) -> GgufTokenizer:
    """The tokenizer's tables."""
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if type(tokens) is not tuple or not 1 <= len(tokens) <= vocabulary or type(tokens[0]) is not str:
        raise CheckpointError(
            f"{metadata.where}: tokenizer.ggml.tokens must be an array of 1 to {vocabulary} strings, "
            "one for each row of the embedding at most"
        )
    optional = (0, len(tokens))
    merges = metadata.values.get("tokenizer.ggml.merges", ())
    if type(merges) is not tuple or (merges and type(merges[0]) is not str):
        raise metadata.error("tokenizer.ggml.merges", "an array of strings")

    def special(name: str) -> int | None:
        return metadata.optional_integer(f"tokenizer.ggml.{name}_token_id", 0, len(tokens) - 1)

    return GgufTokenizer(
        model=metadata.text("tokenizer.ggml.model"),
        pre=metadata.optional_text("tokenizer.ggml.pre"),
        tokens=tokens,
        merges=merges,
        scores=metadata.items("tokenizer.ggml.scores", float, optional),
        token_types=metadata.items("tokenizer.ggml.token_type", int, optional),
        bos_id=special("bos"),
        eos_id=special("eos"),
        unk_id=special("unknown"),
        pad_id=special("padding"),
        add_bos=metadata.optional_flag("tokenizer.ggml.add_bos_token"),
        add_space_prefix=metadata.optional_flag("tokenizer.ggml.add_space_prefix"),
    )


def read_defaults(metadata: Metadata, tokenizer: GgufTokenizer) -> GenerationDefaults:
    """The sampling settings that newer files carry, and every id that ends a turn."""
    ends = [tokenizer.eos_id]
    ends += [
        metadata.optional_integer(f"tokenizer.ggml.{name}_token_id", 0, len(tokenizer.tokens) - 1)
        for name in ("eot", "eom")
    ]
    ends += [
        index
        for index, kind in enumerate(tokenizer.token_types)
        if kind == _CONTROL and tokenizer.tokens[index] in _END_TOKENS
    ]

    def setting(name: str) -> float | None:
        key = f"general.sampling.{name}"
        value = metadata.values.get(key)
        if value is None:
            return None
        if type(value) not in {int, float} or not math.isfinite(value) or value < 0:
            raise metadata.error(key, "a finite number of at least 0")
        return float(value)

    top_k = setting("top_k")
    return GenerationDefaults(
        temperature=setting("temp"),
        top_k=None if top_k is None else int(top_k),
        top_p=setting("top_p"),
        min_p=setting("min_p"),
        repetition_penalty=setting("penalty_repeat"),
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_id=tokenizer.bos_id,
    )
