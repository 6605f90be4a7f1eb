"""Soloist's engine: one decoder, one device, one captured graph per token.

Public names: Engine, EngineConfig, SamplingParams and the errors. `Engine` is imported on first use, so that pure parts
of the service can name the others without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine import errors, threads
from engine.config import EngineConfig
from engine.params import SamplingParams

if TYPE_CHECKING:
    from engine.engine import Engine

threads.wait_passively()  # before any module of this package imports torch

__all__ = ["Engine", "EngineConfig", "SamplingParams", "errors"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from engine.engine import Engine

        return Engine
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
