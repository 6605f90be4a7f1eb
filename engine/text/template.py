"""The chat template: the one place in the project where a template is rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import copy_context
from typing import Any

from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.exceptions import TemplateError as JinjaError

from engine.errors import CheckpointError, TemplateError
from engine.text.allowed import RefusalError
from engine.text.budget import MAX_TEMPLATE_CHARS, BoundsError, begin
from engine.text.provenance import foreign, joined
from engine.text.sandbox import Sandbox

_MAX_SENTENCE_CHARS = 500


class ChatTemplate:
    """A compiled chat template. Compiling runs nothing of it; rendering is bounded (`engine.text.budget`).

    Raises CheckpointError for a source that is too long, is no Jinja, or uses what templates may not use.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise CheckpointError(
                f"the chat template has {len(source):,} characters; at most {MAX_TEMPLATE_CHARS:,} are allowed"
            )
        sandbox = Sandbox()
        try:
            code = copy_context().run(sandbox.prepared, source)
            self._template = sandbox.template_class.from_code(sandbox, code, sandbox.globals)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"the chat template is not valid: line {error.lineno}: {_sentence(error.message or error)}"
            ) from error
        except Exception as error:  # deep nesting ends in RecursionError or MemoryError, odd sources in others
            raise CheckpointError(f"the chat template cannot be used: {_sentence(error)}") from error

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Any = None,
        special_text: Mapping[str, str] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text, in which each character remembers its source (`engine.text.provenance`).

        Every string in `messages`, except a `role`, and in `tools` counts as a caller's. Raises TemplateError with
        the template's own sentence where it refuses the messages, and a sentence about it where it fails.
        """
        counted = [0]
        values = {
            **(special_text or {}),
            "messages": [
                {key: value if key == "role" else _as_foreign(value, counted) for key, value in message.items()}
                for message in messages
            ],
            "tools": _as_foreign(tools, counted),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return copy_context().run(self._render, values, counted[0])

    def _render(self, values: dict[str, Any], input_chars: int) -> str:
        budget = begin(input_chars)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.root_render_func(self._template.new_context(values)):
                size += len(piece)
                if size > budget.max_chars:
                    budget.need_chars(size)
                pieces.append(piece)
            prompt = joined("", pieces)
            prompt.encode("utf-8")  # a template can spell unpaired surrogates
            return prompt
        except RefusalError as error:
            raise TemplateError(_sentence(error)) from error
        except BoundsError as error:
            raise TemplateError(f"the chat template goes beyond its bounds: {_sentence(error)}") from error
        except SecurityError as error:
            raise TemplateError(f"the chat template does what templates may not: {_sentence(error)}") from error
        except JinjaError as error:
            raise TemplateError(f"the chat template failed: {_sentence(error)}") from error
        except RecursionError as error:
            raise TemplateError("the chat template goes beyond its bounds: it nests too deeply") from error
        except Exception as error:  # a template runs into any error Python has
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {_sentence(error)}") from error


def _as_foreign(value: Any, counted: list[int]) -> Any:
    """A copy of JSON-like data whose strings count as a caller's; `counted[0]` grows by their characters."""
    if isinstance(value, str):
        counted[0] += len(value)
        return foreign(value)
    if isinstance(value, Mapping):
        return {_as_foreign(key, counted): _as_foreign(item, counted) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_foreign(item, counted) for item in value]
    return value


def _sentence(error: object) -> str:
    text = str(error).encode("utf-8", "replace").decode("utf-8")  # an error has to travel as UTF-8
    return text if len(text) <= _MAX_SENTENCE_CHARS else text[:_MAX_SENTENCE_CHARS] + "..."
