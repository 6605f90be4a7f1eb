"""What the edge knows of an opened model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.text.form import AnswerForm
from service.events import ChatMessage
from service.rpc.convert import SamplingDefaults
from service.rpc.prompts import PromptText

if TYPE_CHECKING:
    from engine.text.grammar import Grammar


class InfoFacts(Protocol):
    """The part of engine.EngineInfo that clients and operators are told."""

    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def decoder(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def architecture(self) -> object: ...
    @property
    def packed_bytes(self) -> int | None: ...


class GraphsPort(Protocol):
    """engine.GraphState."""

    @property
    def enabled(self) -> bool: ...
    @property
    def captured(self) -> int: ...
    @property
    def pool_bytes(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def eager_reason(self) -> str | None: ...


class TokenizerFacts(Protocol):
    """The size of the vocabulary."""

    @property
    def vocabulary(self) -> int: ...


class ModelText(Protocol):
    """engine.text.ChatText, as far as prompts need it."""

    @property
    def tokenizer(self) -> TokenizerFacts: ...
    def prompt_ids(self, messages: Sequence[ChatMessage], tools: None = None, room: int | None = None) -> list[int]: ...
    def grammar(self, form: AnswerForm) -> Grammar: ...


class ModelPort(Protocol):
    """An open engine, read from the event loop's side."""

    @property
    def info(self) -> InfoFacts: ...
    @property
    def text(self) -> ModelText: ...
    @property
    def defaults(self) -> SamplingDefaults: ...
    @property
    def graphs(self) -> GraphsPort: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An opened model. `graphs` is asked each time, since the pool may change; a slot holds `context` tokens."""

    name: str
    context: int
    slots: int
    kv_bytes: int
    device: str
    precision: str
    decoder: str
    fingerprint: str
    architecture: object
    packed_bytes: int | None
    vocabulary: int
    defaults: SamplingDefaults
    text: PromptText
    graphs: Callable[[], GraphsPort]


def served_model(engine: ModelPort) -> ServedModel:
    """What the edge keeps of an open engine."""
    info = engine.info
    return ServedModel(
        name=info.name,
        context=info.context,
        slots=info.slots,
        kv_bytes=info.kv_bytes,
        device=info.device,
        precision=info.precision,
        decoder=info.decoder,
        fingerprint=info.fingerprint,
        architecture=info.architecture,
        packed_bytes=info.packed_bytes,
        vocabulary=engine.text.tokenizer.vocabulary,
        defaults=engine.defaults,
        text=engine.text,
        graphs=lambda: engine.graphs,
    )
