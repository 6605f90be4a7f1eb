"""`transformers` on our weights: its own `generate`, eager with its growing cache, or compiled with its static one."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from engine.architecture import Architecture, LinearRope, Llama3Rope, RopeFactors
from engine.bench.contender import Turn
from engine.bench.extras import need
from engine.bench.opening import Setup, architecture_of, torch_device, torch_dtype
from engine.bench.shapes import SHAPES
from engine.checkpoint import Checkpoint, open_checkpoint

_ATTENTION_BIAS = {"llama", "mistral", "qwen3"}  # families whose configuration has a switch for it; Qwen2 always has it


class TransformersContender:
    """A causal LM of `transformers`. `compiled`: with a static cache and torch.compile, as `generate` does it."""

    def __init__(self, model: Any, device: torch.device, *, compiled: bool) -> None:
        self._model, self._device, self._compiled = model, device, compiled

    @torch.inference_mode()
    def turn(self, prompt_ids: Sequence[int], new_tokens: int) -> Turn:
        """See Contender. The clock starts and ends when `generate` asks whether to go on, after each token."""
        transformers = need_transformers()
        clock = _Clock(self._device)
        options: dict[str, Any] = {}
        if self._compiled:
            options["cache_implementation"] = "static"
            config = transformers.CompileConfig(
                mode="reduce-overhead" if self._device.type == "cuda" else "default", fullgraph=False
            )
            config._compile_all_devices = True  # on a CPU it would not compile
            options["compile_config"] = config
        else:
            options["disable_compile"] = True
        prompt = torch.tensor([list(prompt_ids)], dtype=torch.int64, device=self._device)
        made = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
            **options,
        )
        return Turn(tuple(made[0, len(prompt_ids) :].tolist()), *clock.elapsed())


class _Clock:
    """Called by `generate` after each token. Never stops it; waits for the device at the first token and the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start: tuple[float, float] | None = None

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self._start is None:
            self._start = self._now()
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    def elapsed(self) -> tuple[float, float]:
        """Wall and CPU seconds since the first token."""
        now = self._now()
        assert self._start is not None
        return now[0] - self._start[0], now[1] - self._start[1]

    def _now(self) -> tuple[float, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), time.process_time()


def need_transformers() -> Any:
    """The package. Raises MissingExtraError."""
    return need("transformers", "a comparison with it", "install it with: pip install 'soloist[bench]'")


@contextmanager
def open_transformers(setup: Setup, *, compiled: bool) -> Iterator[TransformersContender]:
    """The model of `setup` in `transformers`, in the same type on the same device. Raises MissingExtraError."""
    device = torch_device(setup.device)
    model = build_model(setup.model, device, torch_dtype(setup.precision, device))
    try:
        yield TransformersContender(model, device, compiled=compiled)
    finally:
        del model
        gc.collect()
        if compiled:
            torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def build_model(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A causal LM made from our reading of the checkpoint, so that nothing is converted twice; or random weights."""
    transformers = need_transformers()
    transformers.utils.logging.set_verbosity_error()
    architecture = architecture_of(name)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            configuration(architecture), dtype=dtype, attn_implementation="sdpa"
        ).eval()
    if isinstance(architecture.rope_scaling, RopeFactors):
        factors = torch.tensor(architecture.rope_scaling.factors, device=device)
        model.model.rotary_emb.inv_freq.div_(factors)
    if name not in SHAPES:
        _fill(model, open_checkpoint(name))
    return model


def configuration(a: Architecture) -> Any:
    """The configuration in `transformers` that makes the same decoder."""
    transformers = need_transformers()
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": a.rope_base}
    if isinstance(a.rope_scaling, Llama3Rope):
        rope |= {
            "rope_type": "llama3",
            "factor": a.rope_scaling.factor,
            "low_freq_factor": a.rope_scaling.low_freq_factor,
            "high_freq_factor": a.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": a.rope_scaling.original_context,
        }
    elif isinstance(a.rope_scaling, LinearRope):
        rope |= {"rope_type": "linear", "factor": a.rope_scaling.factor}
    more: dict[str, Any] = {"attention_bias": a.qkv_bias} if a.family in _ATTENTION_BIAS else {}
    if a.family == "mistral":
        more["sliding_window"] = None
    return transformers.AutoConfig.for_model(
        a.family,
        vocab_size=a.vocabulary,
        hidden_size=a.width,
        intermediate_size=a.ffn_width,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_dim,
        max_position_embeddings=a.context,
        rms_norm_eps=a.norm_eps,
        tie_word_embeddings=a.tied_head,
        rope_parameters=rope,
        **more,
    )


def _fill(model: Any, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's tensors into the parameters of the same names."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for stored in checkpoint.tensors():
            if stored.name in parameters:
                parameters.pop(stored.name).copy_(stored.data)
    left = [name for name in parameters if not (checkpoint.architecture.tied_head and name == "lm_head.weight")]
    if left:
        raise ValueError(f"{checkpoint.name}: no tensor for {left[0]} of the model in transformers")
