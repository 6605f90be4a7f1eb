"""A model folder into a module of transformers: safetensors only, no code of the folder's own, every tensor by name."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.architecture import GenericArchitecture
from engine.checkpoint import GenericFolder
from engine.errors import CheckpointError, DeviceError, UnsupportedModelError
from engine.events import Listener, Progress
from engine.faults import first_line
from engine.generic.cache import LayerShape, ShapeRecorder

_UNSTATED_CONTEXT = 2048
# Masks and positions that old exporters saved beside the weights; the module makes its own.
_BUFFERS = re.compile(r"(.*\.)?(attn|attention|self_attn)\.(bias|masked_bias)|(.*\.)?rotary_emb\.inv_freq")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenericModel:
    """A loaded module, and what was learnt of it: what each layer keeps, and which options its forward takes."""

    architecture: GenericArchitecture
    module: Any
    shapes: tuple[LayerShape | None, ...]
    dtype: torch.dtype
    device: torch.device
    options: frozenset[str]

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """Logits `[n, vocabulary]` (of the last position alone, where the module can) of ids `[n]` at `positions`."""
        options: dict[str, Any] = {"use_cache": cache is not None, "return_dict": True}
        if cache is not None:
            options["cache" if "cache" in self.options else "past_key_values"] = cache
            if "logits_to_keep" in self.options:
                options["logits_to_keep"] = 1
        if "position_ids" in self.options:
            options["position_ids"] = positions.view(1, -1)
        logits: torch.Tensor = self.module(input_ids=ids.view(1, -1), **options).logits
        return logits[0]


def load_generic(folder: GenericFolder, device: torch.device, dtype: torch.dtype, listener: Listener) -> GenericModel:
    """Load `folder` as `dtype` onto `device`, and learn what its cache holds.

    Raises UnsupportedModelError where transformers has no such causal model or it keeps no plain keys and values,
    CheckpointError, by name, for a tensor that is missing, misshapen or that nobody uses, DeviceError where the device
    has no room.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = _config(folder)
    listener(Progress("load", 0, folder.total_bytes, "bytes"))
    module = _module(folder, config, device, dtype)
    listener(Progress("load", folder.total_bytes, folder.total_bytes, "bytes"))
    text_config = config.get_text_config(decoder=True)
    options = frozenset(inspect.signature(module.forward).parameters)
    recorders = [ShapeRecorder() for _ in range(text_config.num_hidden_layers)]
    unmeasured = _architecture(folder, config)
    probe = GenericModel(unmeasured, module, (), dtype, device, options)
    with unsupported(folder.name), torch.inference_mode():
        ids = torch.zeros(2, dtype=torch.int64, device=device)
        logits = probe.forward(ids, torch.arange(2, device=device), Cache(layers=recorders))
    shapes = tuple(recorder.shape for recorder in recorders)
    if not any(shapes):
        raise UnsupportedModelError(f"{folder.name}: {unmeasured.family} keeps no keys and values")
    architecture = replace(unmeasured, vocabulary=logits.shape[-1])
    return GenericModel(architecture, module, shapes, dtype, device, options)


@contextmanager
def unsupported(name: str) -> Iterator[None]:
    """Turn what a module raises when it is first played into one sentence."""
    try:
        yield
    except (UnsupportedModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{name}: transformers {transformers.__version__} cannot play it from a static cache: "
            f"{ascii(first_line(error))[:200]}"
        ) from error


def _config(folder: GenericFolder) -> Any:
    """The configuration as transformers reads it, of a causal model that it knows without the folder's own code."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder.folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise UnsupportedModelError(
            f"{folder.folder / 'config.json'}: transformers {transformers.__version__} does not know it: "
            f"{ascii(first_line(error))[:200]}"
        ) from error
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    named = config.architectures or []
    if len(named) != 1 or named[0] not in ((known,) if isinstance(known, str) else known):
        raise UnsupportedModelError(
            f"{folder.folder / 'config.json'}: {', '.join(named)!a} is no causal language model of the type "
            f"{config.model_type!a} in transformers {transformers.__version__}"
        )
    return config


def _module(folder: GenericFolder, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    options = {
        "config": config,
        "dtype": dtype,
        "use_safetensors": True,
        "trust_remote_code": False,
        "local_files_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # they are in the report, by name
        # Straight to the device, shard by shard; on the CPU there is nowhere else to go.
        "device_map": None if device.type == "cpu" else {"": device},
    }
    load = transformers.AutoModelForCausalLM.from_pretrained
    try:
        try:
            module, report = load(folder.folder, attn_implementation="sdpa", **options)
        except ValueError:  # the module has no such attention
            module, report = load(folder.folder, attn_implementation="eager", **options)
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{folder.name}: {device} has no room for the weights") from error
    except Exception as error:
        raise CheckpointError(
            f"{folder.name}: transformers cannot load it: {ascii(first_line(error))[:200]}"
        ) from error
    _check_report(folder.name, report)
    module.eval().requires_grad_(False)
    # With it, many a forward looks into its ids for padding, and so waits for the device.
    module.config.get_text_config(decoder=True).pad_token_id = None
    return module


def _check_report(name: str, report: dict[str, Any]) -> None:
    """Refuse, by name, a tensor that is missing, misshapen, or that nobody uses."""
    unclaimed = sorted(key for key in report["unexpected_keys"] if _BUFFERS.fullmatch(key) is None)
    misshapen = sorted(entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"])
    for names, what in (
        (sorted(report["missing_keys"]), "is missing"),
        (misshapen, "has another shape than the configuration asks for"),
        (unclaimed, "is used by no part of the model"),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{name}: the tensor {names[0]!a}{more} {what}")


def _architecture(folder: GenericFolder, config: Any) -> GenericArchitecture:
    text_config = config.get_text_config(decoder=True)
    return GenericArchitecture(
        family=config.architectures[0],
        layers=text_config.num_hidden_layers,
        vocabulary=text_config.vocab_size,
        context=_context(folder, text_config),
        why=folder.why,
    )


def _context(folder: GenericFolder, config: Any) -> int:
    """Positions that the model was made for."""
    stated = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    context = next((value for value in stated if isinstance(value, int) and value > 1), None)
    if context is None:
        _log.warning("%s: states no context; %d tokens are taken", folder.name, _UNSTATED_CONTEXT)
        context = _UNSTATED_CONTEXT
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in (rope, *rope.values()):
        # These change every frequency once a text outgrows the original length, and so what is in the cache already.
        if isinstance(kind, dict) and kind.get("rope_type") in {"dynamic", "longrope"}:
            original = kind.get("original_max_position_embeddings")
            if isinstance(original, int) and original < context:
                _log.warning(
                    "%s: rope type %s limits the context from %d tokens to the original %d",
                    folder.name, kind["rope_type"], context, original,
                )  # fmt: skip
                context = original
    return context
