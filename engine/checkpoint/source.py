"""What an opened checkpoint is to the rest of the engine: facts from headers first, tensors one at a time after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.architecture import Architecture
from engine.text.source import GgufTokenizer, JsonTokenizer, TokenizerSource

__all__ = [
    "Checkpoint",
    "GenerationDefaults",
    "GgufTokenizer",
    "JsonTokenizer",
    "StoredBlocks",
    "StoredTensor",
    "TokenizerSource",
]


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's authors set for generation. None where they set nothing.

    `eos_ids` is the union of every source in the checkpoint, in order of appearance.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix in blocks of the GGUF type `kind`: `data` `[rows, bytes a row]` uint8."""

    kind: str
    data: torch.Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor read from a checkpoint.

    Attributes:
        name: canonical name, as in a Hugging Face folder (`model.layers.0.self_attn.q_proj.weight`).
        data: CPU tensor in its stored type; float32 where the stored type is a block-quantised one. It may be a view
            of the mapped file: read it before asking for the next one, and never write to it.
        stored_bytes: bytes it takes on disk, the unit of progress.
        blocks: a block-quantised matrix as it is stored, rows in the order of `data`'s; None for other types.
    """

    name: str
    data: torch.Tensor
    stored_bytes: int
    blocks: StoredBlocks | None = None


class Checkpoint(Protocol):
    """A checkpoint whose headers were read and found sound. Opening reads no tensor data."""

    @property
    def name(self) -> str:
        """What to call the model, e.g. `SmolLM2-135M-Instruct`."""

    @property
    def architecture(self) -> Architecture:
        """Shape and options of the decoder."""

    @property
    def tokenizer(self) -> TokenizerSource:
        """Where the tokenizer's tables are."""

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template, untrusted; None where the checkpoint has none."""

    @property
    def defaults(self) -> GenerationDefaults:
        """Generation settings of the model's authors."""

    @property
    def dtype(self) -> torch.dtype:
        """Type to keep most weights in without loss; float32 where the stored type is a block-quantised one."""

    @property
    def total_bytes(self) -> int:
        """Sum of `stored_bytes` over `tensors()`."""

    def digest(self) -> str:
        """sha256, in hex, over names, types, shapes and sizes of the tensors and the facts that shape the decoder."""

    def tensors(self) -> Iterator[StoredTensor]:
        """Every tensor once, in file order. Raises CheckpointError where the data cannot be read."""
