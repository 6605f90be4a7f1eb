"""Checkpoints on disk: GGUF files and folders in Hugging Face layout, opened from headers alone, never unpickled."""

from __future__ import annotations

from engine.checkpoint.locate import EMBEDDED_SHA256, open_checkpoint
from engine.checkpoint.source import (
    Checkpoint,
    GenerationDefaults,
    GgufTokenizer,
    JsonTokenizer,
    StoredTensor,
    TokenizerSource,
)

__all__ = [
    "EMBEDDED_SHA256",
    "Checkpoint",
    "GenerationDefaults",
    "GgufTokenizer",
    "JsonTokenizer",
    "StoredTensor",
    "TokenizerSource",
    "open_checkpoint",
]
