"""Checkpoints on disk: a GGUF file or a folder in Hugging Face layout, opened from headers alone and never unpickled."""

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
