"""Grammars: what may come next, with real tokenizers of both kinds."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import InvalidRequestError, StepError
from engine.params import MAX_CHOICE_BYTES, MAX_CHOICES, MAX_JSON_SCHEMA_BYTES, MAX_REGEX_BYTES
from engine.text import AnswerForm, ChatText, build_chat_text
from engine.text.grammar import MAX_CACHED, Grammar
from engine.text.source import GgufTokenizer, JsonTokenizer
from tests.grammars import allowed_ids, answer_at_random

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def spelled(text: ChatText, grammar: Grammar, answer: str) -> bool:
    """Whether an answer, in the tokenizer's own ids, fits whole and may end there."""
    state = grammar.begin()
    for token_id in text.tokenizer.encode(answer):
        if token_id not in allowed_ids(state):
            return False
        state.accept(token_id)
    return text.end_ids <= set(allowed_ids(state))


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ('{"name": "Ada", "age": 36}', True),
        ('{"name":"Ada","age":36}', True),
        ('{\n  "name": "Ada",\n  "age": 36\n}', True),
        ('{"name": "Ada"}', False),
        ('{"name": "Ada", "age": -1}', False),
        ('{"name": "Ada Lovelace!", "age": 36}', False),
        ('{"name": "Ada", "age": 36, "x": 1}', False),
        ('{"name":  "Ada", "age": 36}', False),  # white space is bounded: one space, or a line's indent
        (' {"name": "Ada", "age": 36}', False),
    ],
)
def test_a_schema_allows_what_fits_it_and_no_more(embedded: ChatText, answer: str, fits: bool) -> None:
    assert spelled(embedded, embedded.grammar(AnswerForm.json_schema(PERSON)), answer) is fits


def test_an_answer_may_end_only_where_it_is_complete(embedded: ChatText) -> None:
    state = embedded.grammar(AnswerForm.json_schema('{"type": "object"}')).begin()
    for token_id in embedded.tokenizer.encode("{}"):
        assert not embedded.end_ids & set(allowed_ids(state))
        state.accept(token_id)
    assert set(allowed_ids(state)) == embedded.end_ids


def test_no_control_token_is_part_of_an_answer(embedded: ChatText) -> None:
    state = embedded.grammar(AnswerForm.regex("(?s).*")).begin()
    allowed = set(allowed_ids(state))
    assert allowed & embedded.tokenizer.control_ids == embedded.end_ids
    assert len(allowed) > embedded.tokenizer.vocabulary // 2


@pytest.mark.parametrize(
    "expression", [r"[a-c]{3}", r"\d{2,4}-[xyz]+!", "(ja|nein)/\n", r"^[a-z]{1,9}@[a-z]{1,9}\.org$", "é+ü"]
)
def test_a_regex_is_matched_whole(embedded: ChatText, expression: str) -> None:
    grammar = embedded.grammar(AnswerForm.regex(expression))
    for seed in range(5):
        answer = answer_at_random(embedded, grammar, seed)
        assert re.fullmatch(expression.removeprefix("^").removesuffix("$"), answer)


def test_a_choice_is_one_of_its_texts(embedded: ChatText) -> None:
    choices = ("yes", "yes, but", "no", 'a "quoted"\\ text/', "näh \n 語", "%llguidance {}")
    grammar = embedded.grammar(AnswerForm.choice(choices))
    assert {answer_at_random(embedded, grammar, seed) for seed in range(60)} == set(choices)


@pytest.fixture(params=["sentencepiece", "byte_level"])
def tiny(
    request: pytest.FixtureRequest, tiny_source: GgufTokenizer, json_source: Callable[..., JsonTokenizer]
) -> ChatText:
    """A tokenizer that puts a space in front of texts, and one of a `tokenizer.json`."""
    if request.param == "byte_level":
        return build_chat_text(json_source(eos_token="</s>"), None)
    letters = 'abcdefghijklmnopqrstuvwxyz{}[]:,."0123456789'
    tokens = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters, "\u2581{")
    types = (2, 3, 3, *[6] * 256, *[1] * (len(letters) + 2))
    scores = tuple(float(-place) for place in range(len(tokens)))
    return build_chat_text(GgufTokenizer("llama", None, tokens, (), scores, types, 1, 2, 0, None, True), None)


@pytest.mark.parametrize(
    "form", [AnswerForm.choice((" a", "b")), AnswerForm.json_schema(PERSON), AnswerForm.regex("[ab]{2}")]
)
def test_every_kind_of_tokenizer_is_served(tiny: ChatText, form: AnswerForm) -> None:
    answers = {answer_at_random(tiny, tiny.grammar(form), seed) for seed in range(12)}
    if form.kind == "choice":
        assert answers == {" a", "b"}
    elif form.kind == "regex":
        assert answers <= {"aa", "ab", "ba", "bb"}
    else:
        assert all(set(json.loads(answer)) == {"name", "age"} for answer in answers)


def test_an_id_that_does_not_fit_is_an_error(embedded: ChatText) -> None:
    state = embedded.grammar(AnswerForm.choice(("yes",))).begin()
    with pytest.raises(StepError, match="does not fit"):
        state.accept(embedded.tokenizer.encode("no")[0])


def test_a_state_is_a_function_of_the_ids_so_far(embedded: ChatText) -> None:
    grammar = embedded.grammar(AnswerForm.json_schema(PERSON))
    ids = embedded.tokenizer.encode('{"name": "Ada", "age": 3')
    walked = grammar.begin()
    for count, token_id in enumerate(ids):
        assert allowed_ids(walked) == allowed_ids(grammar.begin(ids[:count]))
        walked.accept(token_id)
    assert allowed_ids(grammar.begin())[:5] == allowed_ids(grammar.begin())[:5]


TOO_LARGE: list[tuple[str, Callable[[], AnswerForm]]] = [
    ("response_format.json_schema", lambda: AnswerForm.json_schema("{}".rjust(MAX_JSON_SCHEMA_BYTES + 1))),
    ("response_format.regex", lambda: AnswerForm.regex("a" * (MAX_REGEX_BYTES + 1))),
    ("response_format.choice.choices", lambda: AnswerForm.choice(tuple(map(str, range(MAX_CHOICES + 1))))),
    ("response_format.choice.choices", lambda: AnswerForm.choice(())),
    ("response_format.choice.choices[1]", lambda: AnswerForm.choice(("a", "b" * (MAX_CHOICE_BYTES + 1)))),
    ("response_format.choice.choices[0]", lambda: AnswerForm.choice(("",))),
    ("response_format.regex", lambda: AnswerForm.regex("")),
    ("response_format.regex", lambda: AnswerForm.regex("\ud800")),
]


@pytest.mark.parametrize(("field", "make"), TOO_LARGE)
def test_promise_16_the_limit_passes_and_one_more_is_refused(field: str, make: Callable[[], AnswerForm]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field
    AnswerForm.json_schema("{}".rjust(MAX_JSON_SCHEMA_BYTES))
    AnswerForm.regex("a" * MAX_REGEX_BYTES)
    AnswerForm.choice(("b" * MAX_CHOICE_BYTES, *map(str, range(MAX_CHOICES - 1))))


REFUSED = {
    "lookahead": (AnswerForm.regex("a(?!b)"), "look-around"),
    "backreference": (AnswerForm.regex(r"(a)\1"), "backreferences"),
    "word border": (AnswerForm.regex(r"\bfoo"), "lookarounds"),
    "unclosed": (AnswerForm.regex("["), "unclosed"),
    "nothing": (AnswerForm.regex(r"[^\s\S]"), "allows no answer"),
    "one of": (AnswerForm.json_schema('{"oneOf": [{"type": "number"}, {"type": "integer"}]}'), "anyOf"),
    "pattern": (AnswerForm.json_schema('{"type": "string", "pattern": "(?=a)"}'), "look-ahead"),
    "format": (AnswerForm.json_schema('{"type": "string", "format": "nope"}'), "nope"),
    "unsatisfiable": (AnswerForm.json_schema('{"type": "integer", "minimum": 5, "maximum": 2}'), "Unsatisfiable"),
    "dangling": (AnswerForm.json_schema('{"$ref": "#/$defs/a"}'), "does not exist"),
    "endless": (AnswerForm.json_schema('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'), "no answer"),
    "exponential": (
        AnswerForm.json_schema(
            json.dumps(
                {
                    "allOf": [
                        {"anyOf": [{"properties": {f"p{i}_{j}": {}}, "type": "object"} for j in range(5)]}
                        for i in range(9)
                    ]
                }
            )
        ),
        "too large|needs more work",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_in_the_callers_terms(embedded: ChatText, name: str) -> None:
    form, says = REFUSED[name]
    with pytest.raises(InvalidRequestError, match=says) as caught:
        embedded.grammar(form)
    assert caught.value.field == form.field
    assert "llguidance" not in caught.value.message
    assert "x-guidance" not in caught.value.message


def test_a_grammar_that_grows_too_costly_ends_the_answer_with_its_name(embedded: ChatText) -> None:
    grammar = embedded.grammar(AnswerForm.regex(".{0,1000}a.{0,1000}b.{0,1000}c{90}"))
    with pytest.raises(InvalidRequestError, match="more work") as caught:
        answer_at_random(embedded, grammar, 1, most=400)
    assert caught.value.field == "response_format.regex"


def test_compiled_forms_are_kept_and_bounded(embedded: ChatText) -> None:
    first = embedded.grammar(AnswerForm.choice(("0",)))
    assert embedded.grammar(AnswerForm.choice(("0",))) is first
    assert copy.deepcopy(first) is first
    for number in range(MAX_CACHED):
        embedded.grammar(AnswerForm.choice((f"other {number}",)))
    again = embedded.grammar(AnswerForm.choice(("0",)))
    assert again is not first
    assert again == first


def test_many_threads_may_compile_and_begin(embedded: ChatText) -> None:
    def work(number: int) -> str:
        grammar = embedded.grammar(AnswerForm.choice((f"text {number % 3}",)))
        return answer_at_random(embedded, grammar, number)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(24))) == [f"text {number % 3}" for number in range(24)]
