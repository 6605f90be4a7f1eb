"""What may come next in an answer that must have a form. The grammar's state is a function of the ids so far alone.

Masks are made by llguidance, in native code and without the interpreter's lock. It works with the bytes of tokens and
knows nothing else of the model, so every tokenizer that gives bytes is served. Any way to spell a text in tokens is
allowed, not the tokenizer's own alone: the choice among them is the model's.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import llguidance

from engine.errors import InvalidRequestError, StepError
from engine.text.form import AnswerForm, FormKind
from engine.text.schema import served_schema
from engine.text.tokenizer import Tokenizer

MAX_CACHED = 32
# One space, or a new line and its indent, wherever JSON allows white space: what models write, and never without end.
_WHITE_SPACE = r"( |\n[ ]{0,24})"
_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 15 ms
    step_max_items=50_000,
    max_lexer_states=50_000,  # one to two KiB each
    max_grammar_size=200_000,
    verbose_errors=False,  # errors must not quote answers
)
_SPECIAL = b"\xff"  # the library's mark of tokens that no text reaches
_PREAMBLE = '%llguidance {"no_forcing": true}\n'


class GrammarState:
    """Where one answer stands in its grammar."""

    __slots__ = ("_field", "_matcher", "words")

    def __init__(self, matcher: llguidance.LLMatcher, words: int, field: str) -> None:
        self._matcher = matcher
        self._field = field
        self.words = words

    def accept(self, token_id: int) -> None:
        """Take the answer's next id; end tokens are not told. Raises StepError for one that does not fit."""
        if not self._matcher.consume_token(token_id):
            raise StepError(f"the id {token_id} does not fit the answer's form ({self._field})")

    def write_mask(self, address: int) -> None:
        """Write which ids may come next: `words` 32-bit words at `address`, bit i % 32 of word i // 32 for id i.

        An end token is among them where the answer may end. Raises InvalidRequestError where the grammar needs more
        work than one token may cost, or no token leads on.
        """
        self._matcher.unsafe_compute_mask_ptr(address, 4 * self.words)
        if self._matcher.is_error():
            raise _refusal(self._field, self._matcher.get_error())


class Grammar:
    """A compiled form. Any number of answers may begin from it, in any thread."""

    __slots__ = ("_matcher", "form", "words")

    def __init__(self, form: AnswerForm, matcher: llguidance.LLMatcher, words: int) -> None:
        self.form = form
        self.words = words
        self._matcher = matcher

    def begin(self, answered: Sequence[int] = ()) -> GrammarState:
        """The state of an answer that already holds the ids `answered`."""
        state = GrammarState(self._matcher.deep_copy(), self.words, self.form.field)
        for token_id in answered:
            state.accept(token_id)
        return state

    def __repr__(self) -> str:
        return f"Grammar({self.form!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)

    def __deepcopy__(self, memo: dict[int, Any]) -> Grammar:
        return self  # nothing of it changes


class Grammars:
    """Compiles forms for one tokenizer, and keeps the latest. Safe to use from several threads.

    The library's tables of the vocabulary are made with the first form: 0.6 s for 49,152 ids.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = sorted(token_id for token_id in end_ids if token_id < tokenizer.vocabulary)
        self._words = (tokenizer.vocabulary + 31) // 32
        self._lock = threading.Lock()
        self._tables: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[AnswerForm, Grammar] = OrderedDict()

    def compile(self, form: AnswerForm) -> Grammar:
        """The grammar of a form; milliseconds of work, so keep it off threads that others wait for.

        Raises InvalidRequestError, naming the form's field, for one that cannot be served or is too large.
        """
        with self._lock:
            if self._tables is None:
                self._tables = self._make_tables()
            tables = self._tables
            known = self._compiled.get(form)
            if known is not None:
                self._compiled.move_to_end(form)
                return known
        grammar = self._compile(form, tables)
        with self._lock:
            self._compiled[form] = grammar
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return grammar

    def _compile(self, form: AnswerForm, tables: llguidance.LLTokenizer) -> Grammar:
        matcher = llguidance.LLMatcher(tables, self._source(form), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise _refusal(form.field, matcher.get_error())
        grammar = Grammar(form, matcher, self._words)
        room = (ctypes.c_uint32 * self._words)()
        grammar.begin().write_mask(ctypes.addressof(room))  # most of what is too costly, or allows nothing, shows here
        return grammar

    def _source(self, form: AnswerForm) -> str:
        """The form in the library's language."""
        if form.kind is FormKind.JSON_SCHEMA:
            options = {"whitespace_pattern": _WHITE_SPACE, "lenient": False, "coerce_one_of": False}
            body = "%json " + json.dumps({**served_schema(form.texts[0]), "x-guidance": options})
        elif form.kind is FormKind.REGEX:
            body = f"/{llguidance.regex_to_lark(form.texts[0])}/"
        else:
            body = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(form.texts))
        # The text of an answer loses the one space that such a tokenizer puts in front.
        start = 'start: " " body\n' if self._tokenizer.strips_first_space else "start: body\n"
        return f"{_PREAMBLE}{start}body: {body}"

    def _make_tables(self) -> llguidance.LLTokenizer:
        ends = set(self._end_ids)
        hidden = self._tokenizer.control_ids | ends
        spell = self._tokenizer.token_bytes
        pieces = [b"" if i in hidden else spell(i) for i in range(self._tokenizer.vocabulary)]
        tokens = [piece or _SPECIAL + b"%d" % token_id for token_id, piece in enumerate(pieces)]
        return llguidance.LLTokenizer(
            _Vocabulary(tokens, self._end_ids[0], self._tokenizer),
            eos_token=self._end_ids,
            slices=llguidance.LLTokenizer.json_slices(),
        )


class _Vocabulary(llguidance.TokenizerWrapper):
    """What the library asks of a tokenizer."""

    def __init__(self, tokens: list[bytes], end_id: int, tokenizer: Tokenizer) -> None:
        self.is_tokenizer_wrapper = True
        self.tokens = tokens
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _refusal(field: str, error: str) -> InvalidRequestError:
    """The library's error in the caller's terms."""
    message = error.partition("\n<non-verbose/>")[0]
    _, _, inner = message.partition("failed to compile JSON schema: ")
    if "\nerror: " in message:
        inner = "the expression is not served: " + message.rpartition("\nerror: ")[2]
    first = (inner or message).partition("\n")[0]
    if first.startswith("oneOf"):
        first = "oneOf: it cannot be told that its schemas exclude each other; write anyOf"
    elif first.startswith("NoExtension"):
        first = "allows no answer"
    elif any(sign in first for sign in ("too many", "fuel", "too large", "limit")):
        first = f"needs more work than a grammar is given ({first}); make it simpler"
    return InvalidRequestError(field, first)
