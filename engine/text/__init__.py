"""Text in and out of a model: tokenizer, chat template, detokeniser. No torch anywhere below this package.

Public names: ChatText, AnswerForm, AnswerText, Tokenizer, build_chat_text. They are imported on first use, so that a
client that only cleans text for a terminal (`engine.text.terminal`) loads neither `tokenizers` nor `jinja2`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.text.answer import AnswerText
    from engine.text.chat import ChatText, build_chat_text
    from engine.text.form import AnswerForm
    from engine.text.tokenizer import Tokenizer

__all__ = ["AnswerForm", "AnswerText", "ChatText", "Tokenizer", "build_chat_text"]

_HOMES = {
    "AnswerForm": "engine.text.form",
    "AnswerText": "engine.text.answer",
    "ChatText": "engine.text.chat",
    "Tokenizer": "engine.text.tokenizer",
    "build_chat_text": "engine.text.chat",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engine.text' has no attribute {name!r}")
