"""Text of the embedded model, and tiny `tokenizer.json` folders that `transformers` loads too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from engine.checkpoint import open_checkpoint
from engine.checkpoint.source import Checkpoint
from engine.text import ChatText, Tokenizer, build_chat_text
from engine.text.source import GgufTokenizer, JsonTokenizer
from tests.checkpoints import tiny_tokenizer


@pytest.fixture(scope="session")
def embedded_checkpoint(embedded_model: Path) -> Checkpoint:
    """The embedded model's headers."""
    return open_checkpoint(str(embedded_model))


@pytest.fixture(scope="session")
def embedded_source(embedded_checkpoint: Checkpoint) -> GgufTokenizer:
    """The embedded model's tokenizer tables."""
    assert isinstance(embedded_checkpoint.tokenizer, GgufTokenizer)
    return embedded_checkpoint.tokenizer


@pytest.fixture(scope="session")
def embedded(embedded_checkpoint: Checkpoint) -> ChatText:
    """The embedded model's text."""
    return build_chat_text(
        embedded_checkpoint.tokenizer, embedded_checkpoint.chat_template, embedded_checkpoint.defaults.eos_ids
    )


@pytest.fixture(scope="session")
def tokenizer(embedded: ChatText) -> Tokenizer:
    """The embedded model's tokenizer."""
    return embedded.tokenizer


@pytest.fixture(scope="session")
def tiny_source() -> GgufTokenizer:
    """The tables of the tiny tokenizer: quick to build from, with three control tokens at ids 0, 1 and 2."""
    model = json.loads(tiny_tokenizer().to_str())["model"]
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].__getitem__))
    merges = tuple(" ".join(pair) for pair in model["merges"])
    types = (3, 3, 3, *[1] * (len(tokens) - 3))
    return GgufTokenizer("gpt2", "smollm", tokens, merges, (), types, 1, 2, 0, None, False)


@pytest.fixture
def json_source(tmp_path: Path) -> Callable[..., JsonTokenizer]:
    """`json_source(added=[AddedToken(...)], bos_token="<s>")` writes a tiny byte-level tokenizer folder."""

    def write(added: list[AddedToken] | None = None, **config: Any) -> JsonTokenizer:
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens([token for token in added or () if not token.special])
        tokenizer.add_special_tokens([token for token in added or () if token.special])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        full = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "clean_up_tokenization_spaces": False,
        } | config
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(full))
        return JsonTokenizer(tmp_path / "tokenizer.json", full)

    return write
