"""`config.json` and `generation_config.json` of a model folder. What would change the maths is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.architecture import Architecture, LinearRope, Llama3Rope
from engine.checkpoint.layout import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH
from engine.checkpoint.source import GenerationDefaults
from engine.errors import CheckpointError, UnsupportedModelError

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# Options with the only values that leave the maths of the four decoders as it is. Several belong to relatives of
# theirs (Granite, Gemma, Phi, SmolLM3, Cohere), whose configurations get relabelled by hand.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1, 1.0, None),
    "pretraining_tp": (0, 1, None),
    "rope_interleaved": (False, None),
    "quantization_config": (None,),
    "compression_config": (None,),
    "attention_multiplier": (None,),
    "embedding_multiplier": (1, 1.0, None),
    "residual_multiplier": (1, 1.0, None),
    "logits_scaling": (1, 1.0, None),
    "logit_scale": (1, 1.0, None),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "qk_layernorm": (False, None),
    "use_qk_norm": (False, None),
    "no_rope_layers": (None, []),
    "num_local_experts": (0, 1, None),
    "num_experts": (0, 1, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
}

# Of these, the ones that transformers' own class of a family honours, so that it can play what is not native.
_TRANSFORMERS_HONOURS = {
    "hidden_act": ("llama", "mistral", "qwen2", "qwen3"),
    "attention_bias": ("llama", "qwen3"),
    "mlp_bias": ("llama",),
    "use_sliding_window": ("qwen2", "qwen3"),
    "layer_types": ("qwen2", "qwen3"),
}
_TRANSFORMERS_ROPES = ("yarn", "dynamic", "longrope")

_LARGEST = 1e30
_log = logging.getLogger(__name__)


class NotNativeError(UnsupportedModelError):
    """The native decoder does not play this model, and transformers may: the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Options:
    """Typed access to the JSON object of the file at `where`."""

    where: str
    values: Mapping[str, Any]

    def error(self, key: str, wanted: str) -> CheckpointError:
        """What to raise where the value of `key` is not `wanted`."""
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {ascii(value)[:80]}"
        return CheckpointError(f"{self.where}: {key} {found}; it must be {wanted}")

    def integer(self, key: str, high: int, default: int | None = None) -> int:
        """A whole number in `1..high`; null counts as missing."""
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= high:
            raise self.error(key, f"a whole number from 1 to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero; null counts as missing."""
        value: Any = self.values.get(key)
        value = default if value is None else value
        if type(value) not in {int, float} or not 0 < value < _LARGEST:
            raise self.error(key, "a finite number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number of at least zero, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) not in {int, float} or not 0 <= value < _LARGEST:
            raise self.error(key, "a finite number of at least 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; null counts as missing."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(key, "true or false")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing."""
        value = self.values.get(key)
        found = () if value is None else tuple(value) if type(value) is list else (value,)
        if not all(type(item) is int and 0 <= item < MAX_CONTEXT for item in found):
            raise self.error(key, "a token id or a list of token ids")
        return found


def read_architecture(options: Options) -> Architecture:
    """The native decoder that `config.json` describes. Raises NotNativeError where another is described."""
    family = _family(options)
    _refuse_other_maths(options, family)
    width = options.integer("hidden_size", MAX_WIDTH)
    heads = options.integer("num_attention_heads", MAX_WIDTH)
    # Left out, it is as many as there are heads only for Llama; the others would guess a number.
    say_nothing = family != "llama" and "num_key_value_heads" not in options.values
    kv_heads = options.integer("num_key_value_heads", heads, None if say_nothing else heads)
    head_dim = options.integer("head_dim", MAX_WIDTH, 128 if family == "qwen3" else max(1, width // heads))
    if heads % kv_heads or head_dim % 2:
        raise CheckpointError(
            f"{options.where}: {heads} heads of {head_dim} over {kv_heads} key-value heads do not divide evenly"
        )
    return Architecture(
        family=family,
        layers=options.integer("num_hidden_layers", MAX_LAYERS),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=options.integer("intermediate_size", MAX_WIDTH),
        vocabulary=options.integer("vocab_size", MAX_CONTEXT),
        context=_context(options, family),
        norm_eps=options.number("rms_norm_eps", 1e-6),
        **_rope(options),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_head=options.flag("tie_word_embeddings", False),
    )


def _family(options: Options) -> str:
    names = options.values.get("architectures")
    if type(names) is not list or len(names) != 1 or type(names[0]) is not str:
        raise options.error("architectures", "a list of one name")
    if names[0] not in FAMILIES:
        raise NotNativeError(
            f"{options.where}: the architecture {ascii(names[0])[:80]} is not native; native are {', '.join(FAMILIES)}"
        )
    return FAMILIES[names[0]]


def _refuse_other_maths(options: Options, family: str) -> None:
    for key, neutral in _NEUTRAL.items():
        value = options.values.get(key)
        if not any(value == allowed and type(value) is type(allowed) for allowed in neutral):
            raise _other_maths(options, family, key)
    kinds = options.values.get("layer_types")
    # Mistral files name the kinds of layers too, and its window is dealt with by the context.
    allowed_kinds = (
        ("full_attention", "sliding_attention")
        if options.values.get("model_type") == "mistral"
        else ("full_attention",)
    )
    if kinds is not None and (type(kinds) is not list or not all(kind in allowed_kinds for kind in kinds)):
        raise _other_maths(options, family, "layer_types")


def _other_maths(options: Options, family: str, key: str) -> UnsupportedModelError:
    """What to raise for an option of the native families whose value changes the maths."""
    said = f"{options.where}: the option {key} is {ascii(options.values.get(key))[:80]}"
    if family in _TRANSFORMERS_HONOURS.get(key, ()):
        return NotNativeError(f"{said}; the native {family} decoder has no such thing")
    return UnsupportedModelError(f"{said}; that is not served")


def _context(options: Options, family: str) -> int:
    context = options.integer("max_position_embeddings", MAX_CONTEXT)
    # transformers gives a Mistral file that says nothing a window of 4096; null is none.
    if family != "mistral" or options.values.get("sliding_window", 4096) is None:
        return context
    window = options.integer("sliding_window", 1 << 32, 4096)
    if window < context:
        # Within the window every token sees all before it, so full attention is the same thing there.
        _log.warning("%s: sliding_window %d limits the context from %d tokens", options.where, window, context)
    return min(context, window)


def _rope(options: Options) -> dict[str, Any]:
    """`rope_base` and `rope_scaling`, from either spelling: `rope_parameters`, or `rope_theta` and `rope_scaling`."""
    for key in ("rope_parameters", "rope_scaling"):
        value = options.values.get(key)
        if value is None:
            continue
        if type(value) is not dict:
            raise options.error(key, "an object")
        rope = Options(f"{options.where}: {key}", value)
        break
    else:
        rope = Options(options.where, {})
    base = rope.number("rope_theta", options.number("rope_theta", 10_000.0))
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    known = {"rope_theta", "rope_type", "type"}
    scaling: LinearRope | Llama3Rope | None = None
    if kind == "linear":
        known |= {"factor"}
        scaling = LinearRope(rope.number("factor"))
    elif kind == "llama3":
        known |= {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        scaling = Llama3Rope(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_context=rope.integer("original_max_position_embeddings", MAX_CONTEXT),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise rope.error("high_freq_factor", "above low_freq_factor")
    elif kind in _TRANSFORMERS_ROPES:
        raise NotNativeError(
            f"{options.where}: rope type {kind!a} is not native; native are default, linear and llama3"
        )
    elif kind != "default":
        raise UnsupportedModelError(
            f"{options.where}: rope type {ascii(kind)[:80]} is not served; served are default, linear and llama3"
        )
    for key, value in rope.values.items():
        if key not in known and not (value is None or (key == "partial_rotary_factor" and value == 1)):
            raise UnsupportedModelError(f"{rope.where}: the option {ascii(key)[:80]} is not served")
    return {"rope_base": base, "rope_scaling": scaling}


def read_defaults(config: Options, generation: Options) -> GenerationDefaults:
    """The authors' sampling settings, with the EOS ids of both files."""
    temperature = generation.optional_number("temperature")
    top_k, top_p = generation.optional_number("top_k"), generation.optional_number("top_p")
    if generation.values.get("do_sample") is False:
        # Greedy by the authors' wish; the other settings say nothing then.
        temperature, top_k, top_p = 0.0, None, None
    bos = generation.ids("bos_token_id") or config.ids("bos_token_id")
    return GenerationDefaults(
        temperature=temperature,
        top_k=None if top_k is None else int(top_k),
        top_p=top_p,
        min_p=generation.optional_number("min_p"),
        repetition_penalty=generation.optional_number("repetition_penalty"),
        eos_ids=tuple(dict.fromkeys(generation.ids("eos_token_id") + config.ids("eos_token_id"))),
        bos_id=bos[0] if bos else None,
    )
