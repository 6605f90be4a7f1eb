"""Checkpoints on disk: GGUF files and folders in Hugging Face layout, opened from headers alone, never unpickled."""

from __future__ import annotations

from engine.checkpoint.folder import GenericFolder
from engine.checkpoint.locate import EMBEDDED_SHA256, open_checkpoint, open_model
from engine.checkpoint.remote import RemoteOptions
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
    "GenericFolder",
    "GgufTokenizer",
    "JsonTokenizer",
    "RemoteOptions",
    "StoredTensor",
    "TokenizerSource",
    "open_checkpoint",
    "open_model",
]
