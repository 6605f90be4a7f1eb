"""What an opened checkpoint is to the rest of the engine: facts from headers first, tensors one at a time after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.architecture import Architecture


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """The tokenizer tables of a GGUF file, as they stand in its header.

    Attributes:
        model: `tokenizer.ggml.model`: `gpt2` is a byte-level BPE, `llama` a SentencePiece one.
        pre: `tokenizer.ggml.pre`, the name of the pre-tokenizer (`smollm`, `llama-bpe`, `qwen2` ...), or None.
        tokens: text of each id; byte-level BPE tokens are in the printable byte alphabet.
        merges: `left right` pairs in order of rank; empty for SentencePiece.
        scores: one a token for SentencePiece, else empty.
        token_types: one a token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; may be empty.
        bos_id, eos_id, unk_id, pad_id: special ids, None where the file names none.
        add_bos: whether the file asks for a BOS in front of plain text; None where it does not say.
        add_space_prefix: SentencePiece: whether a space goes in front of the text; None where it does not say.
    """

    model: str
    pre: str | None
    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    token_types: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool | None
    add_space_prefix: bool | None = None


@dataclass(frozen=True, slots=True)
class JsonTokenizer:
    """A `tokenizer.json` of the `tokenizers` library, and the `tokenizer_config.json` beside it (empty if absent)."""

    path: Path
    config: Mapping[str, Any]


TokenizerSource = GgufTokenizer | JsonTokenizer


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
class StoredTensor:
    """One tensor read from a checkpoint.

    Attributes:
        name: canonical name, as in a Hugging Face folder (`model.layers.0.self_attn.q_proj.weight`).
        data: CPU tensor in its stored type; float32 where the stored type is a block-quantised one. It may be a view
            of the mapped file: read it before asking for the next one, and never write to it.
        stored_bytes: bytes it takes on disk, the unit of progress.
    """

    name: str
    data: torch.Tensor
    stored_bytes: int


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
