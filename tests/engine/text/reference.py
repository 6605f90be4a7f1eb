"""`transformers` as the oracle."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.engine.text.conversation import Said


def reference_tokenizer(source: str | Tokenizer, **config: Any) -> Any:
    """Its tokenizer for a tokenizer.json (a path) or an object of the library."""
    make: Any = PreTrainedTokenizerFast
    given = {"tokenizer_file": source} if isinstance(source, str) else {"tokenizer_object": source}
    return make(**given, **config)


def reference_prompt(source: str | Tokenizer, messages: list[Said], **config: Any) -> list[int]:
    """Its ids for a conversation, up to where the assistant begins to speak."""
    said = [{"role": message.role, "content": message.content} for message in messages]
    made = reference_tokenizer(source, **config).apply_chat_template(said, add_generation_prompt=True)
    return list(made["input_ids"])


def reference_text(source: str | Tokenizer, messages: list[Said], **config: Any) -> str:
    """Its text for a conversation, up to where the assistant begins to speak."""
    said = [{"role": message.role, "content": message.content} for message in messages]
    made = reference_tokenizer(source, **config).apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    return str(made)
