"""From a configuration to a loaded model, and to a player with as many slots as fit: native, or generic and slower."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.architecture import Architecture, GenericArchitecture
from engine.cache import KVCache, cache_bytes
from engine.checkpoint import Checkpoint, GenericFolder
from engine.config import EngineConfig
from engine.errors import DeviceError, InvalidRequestError, UnsupportedModelError
from engine.events import Listener
from engine.kernels.ops import DecoderWeights
from engine.model import Decoder, StepBuffers
from engine.player import Player
from engine.toolkit import Toolkit, fused_toolkit, plain_toolkit
from engine.weights import load_weights

if TYPE_CHECKING:
    from engine.generic.loading import GenericModel

DEFAULT_CONTEXT = 8192
_GRAPH_POOL_RESERVE = 1 << 30  # bytes kept free for graphs, prefill and the libraries' workspaces
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeModel:
    """Weights on the device, and the shape they were loaded for."""

    architecture: Architecture
    weights: DecoderWeights

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
        context = context_of(config, opened.architecture)
        return NativeModel(opened.architecture, load_weights(opened, device, dtype, context, listener))
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


def make_player(config: EngineConfig, model: NativeModel | GenericModel, context: int, ends: int) -> tuple[Player, int]:
    """A player of contexts of `context` tokens, and how many slots it has; `ends` is how many end tokens there are.

    Raises DeviceError where there is room for no slot, UnsupportedModelError where a generic model fails its check.
    """
    if isinstance(model, NativeModel):
        a, device, dtype = model.architecture, model.device, model.dtype
        slots = _slots_that_fit(config, cache_bytes(a, 1, context, dtype), context, device)
        cache = KVCache(a, slots, context, dtype, device)
        buffers = StepBuffers.allocate(a, slots, ends, dtype, device)
        return Decoder(a, model.weights, cache, buffers, _toolkit(config, a, dtype, device)), slots
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


def _toolkit(config: EngineConfig, architecture: Architecture, dtype: torch.dtype, device: torch.device) -> Toolkit:
    able = device.type == "cuda" and dtype != torch.float32
    if config.kernels == "fused" and not able:
        raise DeviceError(
            "fused kernels need CUDA and half precision; use --kernels auto, or bfloat16 on a CUDA device"
        )
    if config.kernels == "plain" or not able:
        return plain_toolkit(device)
    return fused_toolkit(architecture, dtype, device)


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
