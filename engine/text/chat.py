"""From messages to prompt ids, and from answer ids to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import CheckpointError, ContextLengthError, InvalidRequestError
from engine.text.answer import AnswerText
from engine.text.build import build_tokenizer
from engine.text.form import AnswerForm
from engine.text.provenance import own_runs
from engine.text.source import GgufTokenizer, TokenizerSource
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from engine.text.grammar import Grammar, Grammars

ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
# What models end an answer with; where one of these is a control token of the vocabulary it ends answers, whichever
# of the checkpoint's files forgot to say so.
_END_STRINGS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "</s>",
)


class Message(Protocol):
    """One message of a conversation."""

    @property
    def role(self) -> str:
        """One of `ROLES`."""

    @property
    def content(self) -> str:
        """What was said."""

    @property
    def name(self) -> str | None:
        """Who said it, where the caller tells participants apart."""


class ChatText:
    """Text in and out of one model. Safe to use from several threads.

    Attributes:
        tokenizer: the model's tokenizer.
        end_ids: every id that ends an answer: the union of all that the checkpoint says.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, end_ids: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        self._template = template
        self._grammars: Grammars | None = None
        self._grammars_lock = Lock()

    def check_template(self) -> None:
        """Raise CheckpointError where the checkpoint has no chat template, without which there is no prompt."""
        self._required_template()

    def prompt_ids(self, messages: Sequence[Message], tools: Any = None, room: int | None = None) -> list[int]:
        """Ids of the conversation, up to where the assistant begins to speak.

        With `room`, a conversation of surely more tokens is refused for about the work that one of just so many takes.

        Only the template's own text makes control tokens. It is found by its source, character by character
        (`engine.text.provenance`), so a template may cut and join what people wrote in any way: a piece of theirs
        never becomes, nor completes, a control token. Everything else is tokenised in one piece with its
        surroundings, so that ids are the reference's.

        Raises InvalidRequestError for a bad message, ContextLengthError beyond the room, TemplateError where the
        template refuses them, CheckpointError where the checkpoint has no chat template.
        """
        template = self._required_template()
        for number, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidRequestError(
                    f"messages[{number}].role", f"is {message.role!r}; known: {', '.join(sorted(ROLES))}"
                )
            for part in ("content", "name"):
                if (text := getattr(message, part)) is not None:
                    check_text(text, f"messages[{number}].{part}")
        rendered = template.render(
            [
                {"role": message.role, "content": message.content}
                | ({} if message.name is None else {"name": message.name})
                for message in messages
            ],
            tools,
            self.tokenizer.special_text,
        )
        if self.tokenizer.holds_marker(rendered):
            raise InvalidRequestError("messages", "holds this server's own marker for control tokens; leave it out")
        marked = "".join(self.tokenizer.mark(run) if mine else run for mine, run in own_runs(rendered))
        if room is not None and (least := self.tokenizer.tokens_beyond(marked, room)) is not None:
            raise ContextLengthError(least, room, at_least=True)
        return self._with_one_bos(self.tokenizer.encode_marked(marked))

    def grammar(self, form: AnswerForm) -> Grammar:
        """The compiled form of an answer; the latest are kept. Milliseconds of work, the first time up to a second.

        Raises InvalidRequestError, naming the form's field, for one that is not served or too large.
        """
        with self._grammars_lock:
            if self._grammars is None:
                from engine.text.grammar import Grammars  # its native library is loaded when first asked for

                self._grammars = Grammars(self.tokenizer, self.end_ids)
        return self._grammars.compile(form)

    def answer(self, stop: Sequence[str] = ()) -> AnswerText:
        """The text of a new answer, to end before any of the `stop` texts."""
        return AnswerText(self.tokenizer, stop)

    def _required_template(self) -> ChatTemplate:
        if self._template is None:
            raise CheckpointError(
                "the model has no chat template, so there is no telling how it wants a conversation written: serve an "
                "instruction-tuned model, or add `chat_template.jinja` to the model's folder"
            )
        return self._template

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_id
        if bos is None:
            return ids
        count = 0
        while count < len(ids) and ids[count] == bos:
            count += 1
        if count == 0:
            return [bos, *ids] if self.tokenizer.add_bos else ids
        return ids[count - 1 :]


def build_chat_text(source: TokenizerSource, chat_template: str | None, eos_ids: Iterable[int] = ()) -> ChatText:
    """Text for one checkpoint. Raises CheckpointError where its tokenizer or its chat template cannot be used."""
    tokenizer = build_tokenizer(source)
    ends = set(eos_ids)
    if isinstance(source, GgufTokenizer) and source.eos_id is not None:
        ends.add(source.eos_id)
    controls = tokenizer.control_strings
    ends |= {controls[text] for text in (*_END_STRINGS, tokenizer.special_text.get("eos_token")) if text in controls}
    template = None if chat_template is None else ChatTemplate(chat_template)
    return ChatText(tokenizer, template, ends)
