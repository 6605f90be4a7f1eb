"""What the service needs of an engine. `engine.Engine` fits it; so does the tests' fake, which needs no torch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from engine.history import Resumption
from engine.outputs import TurnStep
from engine.params import SamplingParams


class ContextPort(Protocol):
    """One KV slot: the tokens whose keys and values are held."""

    @property
    def tokens(self) -> Sequence[int]:
        """Ids held, oldest first."""
        ...

    def close(self) -> None:
        """Frees the slot. A second call does nothing."""
        ...


class SavedPort(Protocol):
    """What a context held, in host memory."""

    @property
    def tokens(self) -> Sequence[int]:
        """Ids held, oldest first."""
        ...

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        ...


class AnswerPort(Protocol):
    """Turns the ids of one answer into text, piece by piece."""

    @property
    def stopped(self) -> str | None:
        """The stop text that matched, if one did."""
        ...

    def push(self, token_id: int) -> str:
        """The text that may be shown after this id."""
        ...

    def finish(self) -> str:
        """The held-back tail."""
        ...


class TokenizerPort(Protocol):
    """The part of a tokenizer that an answer needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the id stands for."""
        ...


class TextPort(Protocol):
    """The model's text side."""

    @property
    def tokenizer(self) -> TokenizerPort:
        """Ids to bytes."""
        ...

    def answer(self, stop: Sequence[str]) -> AnswerPort:
        """A detokeniser for one answer that ends before any of `stop`."""
        ...


class InfoPort(Protocol):
    """The sizes that the service must know."""

    @property
    def context(self) -> int:
        """Tokens that one context holds."""
        ...

    @property
    def slots(self) -> int:
        """Contexts that exist at once."""
        ...

    @property
    def kv_bytes(self) -> int:
        """What all contexts take on the device."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal where answers are equal bit for bit."""
        ...


class EnginePort(Protocol):
    """An engine, owned by one thread. Only `info` and `text` may be read from another one."""

    @property
    def info(self) -> InfoPort:
        """Sizes, fixed once opened."""
        ...

    @property
    def text(self) -> TextPort:
        """Tokenizer, template, detokeniser."""
        ...

    def open_context(self) -> ContextPort:
        """Takes a free slot; StepError when there is none."""
        ...

    def self_check(self) -> bool:
        """Compare one graph with its eager twin, while nobody plays; False where there is nothing to check."""
        ...

    def save(self, context: Any) -> SavedPort:
        """A copy of what an idle context of this engine's own holds, in host memory."""
        ...

    def restore(self, saved: Any) -> ContextPort:
        """What was saved, in a free slot; StepError when there is none."""
        ...

    def generate(
        self,
        context: Any,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        resumption: Resumption | None = None,
    ) -> Generator[TurnStep, None, None]:
        """One turn, a step at a time, in a context of this engine's own; see `engine.Engine.generate`."""
        ...

    def close(self) -> None:
        """Frees the device."""
        ...
