"""Where a tokenizer comes from. The types stand this low so that checkpoints can hand them over without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
