"""From a configuration to a loaded model, and to a player with as many slots as fit: native, or generic and slower."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.architecture import Architecture, GenericArchitecture
from engine.cache import KVCache, cache_bytes
from engine.checkpoint import Checkpoint, GenericFolder
from engine.checkpoint.gguf import GgufCheckpoint
from engine.config import EngineConfig
from engine.errors import DeviceError, InvalidRequestError, UnsupportedModelError
from engine.events import Listener
from engine.kernels.native import Compilation, why_not
from engine.kernels.ops import DecoderWeights
from engine.kernels.packed import BLOCK_BYTES
from engine.model import Decoder, StepBuffers
from engine.player import Player
from engine.toolkit import Toolkit, fused_toolkit, plain_toolkit, quantised_toolkit
from engine.weights import load_weights

if TYPE_CHECKING:
    from engine.generic.loading import GenericModel

DEFAULT_CONTEXT = 8192
_GRAPH_POOL_RESERVE = 1 << 30  # bytes kept free for graphs, prefill and the libraries' workspaces
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeModel:
    """Weights on the device, and the shape they were loaded for; `compilation` of the steps that packed ones need."""

    architecture: Architecture
    weights: DecoderWeights
    compilation: Compilation | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, keys and values."""
        return self.weights.head.dtype


def load_model(
    opened: Checkpoint | GenericFolder,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    listener: Listener,
) -> NativeModel | GenericModel:
    """Load what was opened as `dtype` onto `device`."""
    if not isinstance(opened, GenericFolder):
        return load_native(opened, config, device, dtype, listener)
    if config.kernels == "fused":
        raise UnsupportedModelError(f"fused kernels play native models only; {opened.why}")
    try:
        from engine.generic.loading import load_generic
    except ImportError as error:
        raise UnsupportedModelError(
            f"{opened.why}; transformers can play it, slower, and is not installed: pip install 'soloist[generic]'"
        ) from error
    _log.warning("%s: transformers plays it, slower than a native decoder would: %s", opened.name, opened.why)
    return load_generic(opened, device, dtype, listener)


def load_native(
    opened: Checkpoint, config: EngineConfig, device: torch.device, dtype: torch.dtype, listener: Listener
) -> NativeModel:
    """Load weights; where steps can be played from the stored blocks, compile those meanwhile."""
    blocked = isinstance(opened, GgufCheckpoint) and opened.matrix_types <= BLOCK_BYTES.keys()
    wanted = config.kernels in ("auto", "quantised")
    able = wanted and blocked and device.type == "cpu" and dtype == torch.float32
    reason = why_not() if able else None
    if reason is not None and config.kernels == "auto":
        _log.warning("%s: decoding from float32 weights, slower than from the stored blocks: %s", opened.name, reason)
    compilation = Compilation() if able and reason is None else None
    context = context_of(config, opened.architecture)
    weights = load_weights(opened, device, dtype, context, listener, packed=compilation is not None)
    if config.kernels == "quantised" and weights.packed is None:
        raise DeviceError(
            "quantised kernels need a CPU, float32 precision and a GGUF file whose matrices are Q4_0, Q4_1 or Q8_0"
            f"{'' if reason is None else f'; {reason}'}; use --kernels auto"
        )
    return NativeModel(opened.architecture, weights, compilation)


def make_player(config: EngineConfig, model: NativeModel | GenericModel, context: int, ends: int) -> tuple[Player, int]:
    """A player of contexts of `context` tokens, and how many slots it has; `ends` is how many end tokens there are.

    Raises DeviceError where there is room for no slot, UnsupportedModelError where a generic model fails its check.
    """
    if isinstance(model, NativeModel):
        a, device, dtype = model.architecture, model.device, model.dtype
        slots = _slots_that_fit(config, cache_bytes(a, 1, context, dtype), context, device)
        cache = KVCache(a, slots, context, dtype, device)
        buffers = StepBuffers.allocate(a, slots, ends, dtype, device)
        return Decoder(a, model.weights, cache, buffers, _toolkit(config, model)), slots
    from engine.generic.cache import slot_bytes
    from engine.generic.decoder import GenericDecoder

    slots = _slots_that_fit(config, slot_bytes(model.shapes, context, model.dtype), context, model.device)
    generic = GenericDecoder(model, slots, context, ends)
    generic.check()
    return generic, slots


def context_of(config: EngineConfig, architecture: Architecture | GenericArchitecture) -> int:
    """Tokens that a session may hold."""
    if config.context is None:
        return min(architecture.context, DEFAULT_CONTEXT)
    if not 1 < config.context <= architecture.context:
        raise InvalidRequestError(
            "context", f"must be between 2 and the model's {architecture.context} tokens; got {config.context}"
        )
    return config.context


def _toolkit(config: EngineConfig, model: NativeModel) -> Toolkit:
    device, dtype = model.device, model.dtype
    able = device.type == "cuda" and dtype != torch.float32
    if config.kernels == "fused" and not able:
        raise DeviceError(
            "fused kernels need CUDA and half precision; use --kernels auto, or bfloat16 on a CUDA device"
        )
    if model.weights.packed is not None and model.compilation is not None:
        return quantised_toolkit(model.compilation)
    if config.kernels == "plain" or not able:
        return plain_toolkit(device)
    return fused_toolkit(model.architecture, dtype, device)


def _slots_that_fit(config: EngineConfig, slot_bytes: int, context: int, device: torch.device) -> int:
    """As many of the configured slots as fit beside what graphs and prefill will need."""
    if device.type != "cuda":
        return config.slots
    free, _ = torch.cuda.mem_get_info(device)
    fitting = (free - _GRAPH_POOL_RESERVE) // slot_bytes
    if fitting < 1:
        raise DeviceError(
            f"no room for one KV slot: {context} tokens take {slot_bytes / 2**20:.0f} MiB, {free / 2**20:.0f} are "
            f"free and {_GRAPH_POOL_RESERVE / 2**20:.0f} MiB are kept for graphs; use a shorter --context"
        )
    return int(min(config.slots, fitting))
