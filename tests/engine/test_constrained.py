"""Turns whose answers have a form, on a tiny random model: every answer fits, and nobody else notices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import InvalidRequestError
from engine.history import Resumption
from engine.outputs import Token
from engine.stepper import Stepper
from engine.text import AnswerForm
from engine.text.grammar import Grammar, GrammarState
from tests.checkpoints import Sizes, write_tiny_folder
from tests.schemas import SchemaDraw, faults

CONTEXT, PROMPT = 4096, [9, 10, 11]
SHORT, FULL = 60, 500
NESTED = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 9}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(layers=1, context=CONTEXT, vocabulary=333))
    opened = Engine.open(EngineConfig(model=str(folder), device="cpu", slots=2, prefill_chunk=16, threads=1))
    yield opened
    opened.close()


def params_for(engine: Engine, form: AnswerForm | None, **wishes: Any) -> SamplingParams:
    """Sampling at random, with a liking for what closes things, as a random model does not end by itself."""
    tokenizer = engine.text.tokenizer
    closers = [tokenizer.encode(text)[0] for text in ('"', "}", "]")]
    bias = dict.fromkeys((*closers, *engine.text.end_ids), 4.0)
    grammar = None if form is None else engine.text.grammar(form)
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 3000, "logit_bias": bias, "grammar": grammar, **wishes})


def tokens_of(
    engine: Engine, params: SamplingParams, resumption: Resumption | None = None, prompt: Sequence[int] = PROMPT
) -> list[Token]:
    context = engine.open_context()
    try:
        steps = list(engine.generate(context, prompt, params, resumption))
    finally:
        context.close()
    return [step for step in steps if isinstance(step, Token)]


def said(engine: Engine, tokens: list[Token]) -> str:
    """The whole answer, which must have ended by itself."""
    assert tokens[-1].end, "no end"
    return engine.text.tokenizer.decode(token.token_id for token in tokens[:-1])


def check_schemas(engine: Engine, seeds: range) -> None:
    wrong: dict[int, list[str]] = {}
    for seed in seeds:
        schema = json.dumps(SchemaDraw(seed).schema())
        answer = said(engine, tokens_of(engine, params_for(engine, AnswerForm.json_schema(schema), seed=seed)))
        if found := faults(schema, answer):
            wrong[seed] = [schema, answer, *found]
    assert not wrong


def test_answers_fit_random_schemas(engine: Engine) -> None:
    check_schemas(engine, range(SHORT))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_answers_fit_all_random_schemas(engine: Engine) -> None:
    check_schemas(engine, range(SHORT, FULL))


@pytest.mark.parametrize(
    "wishes",
    [{"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}, {"logprobs": True, "top_logprobs": 3}],
)
def test_every_way_to_sample_obeys(engine: Engine, wishes: dict[str, Any]) -> None:
    for seed in range(3):
        params = params_for(engine, AnswerForm.regex(r"[a-f]{3}-[0-9]{2}"), seed=seed, **wishes)
        assert re.fullmatch(r"[a-f]{3}-[0-9]{2}", said(engine, tokens_of(engine, params)))


def test_a_choice_is_one_of_its_texts(engine: Engine) -> None:
    choices = ("yes", "no", "größer 語")
    params = [params_for(engine, AnswerForm.choice(choices), seed=seed, logit_bias={}) for seed in range(40)]
    assert {said(engine, tokens_of(engine, one)) for one in params} == set(choices)


def test_the_end_comes_with_an_end_token_of_the_model(engine: Engine) -> None:
    tokens = tokens_of(engine, params_for(engine, AnswerForm.choice(("only this",)), temperature=0.0))
    assert tokens[-1].token_id in engine.text.end_ids
    assert [token.end for token in tokens] == [False] * (len(tokens) - 1) + [True]


def test_max_tokens_cuts_an_answer_as_any_other(engine: Engine) -> None:
    tokens = tokens_of(engine, params_for(engine, AnswerForm.regex("[0-9]{50}"), max_tokens=7))
    assert len(tokens) == 7
    assert not tokens[-1].end


def test_turns_side_by_side_keep_their_own_masks(engine: Engine) -> None:
    forms = [AnswerForm.json_schema(NESTED), None]
    wishes = [params_for(engine, form, seed=3, max_tokens=60) for form in forms]
    expected = [[token.token_id for token in tokens_of(engine, one)] for one in wishes]
    contexts = [engine.open_context() for _ in wishes]
    made: list[list[int]] = [[], []]
    try:
        turns = [engine.generate(context, PROMPT, one) for context, one in zip(contexts, wishes, strict=True)]
        playing = dict(enumerate(turns))
        while playing:
            for index, turn in list(playing.items()):
                step = next(turn, None)
                if step is None:
                    del playing[index]
                elif isinstance(step, Token):
                    made[index].append(step.token_id)
    finally:
        for context in contexts:
            context.close()
    assert made == expected


@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_turn_after_a_broken_off_one_is_free(engine: Engine, after: int) -> None:
    free = params_for(engine, None, seed=5, max_tokens=30)
    expected = [token.token_id for token in tokens_of(engine, free)]
    context = engine.open_context()
    try:
        with closing(engine.generate(context, PROMPT, params_for(engine, AnswerForm.regex("[0-9]{90}")))) as turn:
            made = 0
            while made < after:
                made += isinstance(next(turn), Token)
        steps = engine.generate(context, PROMPT, free)
        assert [step.token_id for step in steps if isinstance(step, Token)] == expected
    finally:
        context.close()


@pytest.mark.parametrize("most", [7, 3000])
def test_a_step_enqueued_ahead_of_the_reader_changes_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    params = params_for(engine, AnswerForm.json_schema(NESTED), seed=4, max_tokens=most)
    expected = tokens_of(engine, params)
    monkeypatch.setattr(Stepper, "lookahead", 1)
    assert tokens_of(engine, params) == expected
    rest = tokens_of(engine, params, Resumption(tuple(token.token_id for token in expected[:4])))
    assert rest == expected[4:]


@pytest.mark.parametrize("wishes", [{"temperature": 0.0}, {"seed": 11, "repetition_penalty": 1.2}])
def test_a_broken_answer_goes_on_with_the_same_words(engine: Engine, wishes: dict[str, Any]) -> None:
    params = params_for(engine, AnswerForm.json_schema(NESTED), **wishes)
    whole = [token.token_id for token in tokens_of(engine, params)]
    for made in range(1, len(whole), max(1, len(whole) // 12)):
        rest = tokens_of(engine, params, Resumption(tuple(whole[:made])))
        assert [token.token_id for token in rest] == whole[made:]


@pytest.mark.parametrize("prompt", [[9, 10, 11], list(range(20, 60)), [9 + (7 * i) % 200 for i in range(230)]], ids=len)
@pytest.mark.parametrize("every", [21, pytest.param(1, marks=pytest.mark.slow)])
def test_promise_08_an_answer_with_a_form_broken_after_any_token(engine: Engine, prompt: list[int], every: int) -> None:
    form = AnswerForm.json_schema(NESTED.replace('"maxItems": 9', '"minItems": 30'))
    params = params_for(engine, form, seed=5, max_tokens=64, logit_bias={})
    whole = [token.token_id for token in tokens_of(engine, params, prompt=prompt)]
    assert len(whole) == 64
    for made in range(0, len(whole) + 1, every):
        rest = tokens_of(engine, params, Resumption(tuple(whole[:made])), prompt)
        assert [token.token_id for token in rest] == whole[made:], f"broken after {made}"


def test_an_answer_resumed_in_haste_keeps_its_form(engine: Engine) -> None:
    params = params_for(engine, AnswerForm.json_schema(NESTED), seed=2)
    whole = tokens_of(engine, params)
    emitted = [token.token_id for token in whole[:5]]
    rest = tokens_of(engine, params, Resumption(tuple(emitted), exact=False))
    assert not faults(NESTED, said(engine, [*whole[:5], *rest]))


def test_ids_of_another_form_cannot_be_gone_on_with(engine: Engine) -> None:
    params = params_for(engine, AnswerForm.choice(("yes",)))
    resumption = Resumption(tuple(engine.text.tokenizer.encode("no")), exact=False)
    with pytest.raises(InvalidRequestError, match="another form") as caught:
        tokens_of(engine, params, resumption)
    assert caught.value.field == "resume.token_ids"


class TiringState(GrammarState):
    """Has no more than three masks to give."""

    left = 3

    def write_mask(self, address: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise InvalidRequestError("response_format.regex", "needs more work")
        super().write_mask(address)


class TiringGrammar(Grammar):
    def begin(self, answered: Sequence[int] = ()) -> GrammarState:
        return TiringState(self._matcher, self.words, self.form.field)


def test_a_grammar_that_grows_too_costly_ends_its_turn_alone(engine: Engine) -> None:
    sound = engine.text.grammar(AnswerForm.regex("[a-z]{40}"))
    params = params_for(engine, None, grammar=TiringGrammar(sound.form, sound._matcher, sound.words))
    context = engine.open_context()
    turn = engine.generate(context, PROMPT, params)
    made: list[Token] = []
    with pytest.raises(InvalidRequestError, match="more work"):
        made.extend(step for step in turn if isinstance(step, Token))
    context.close()
    choice = params_for(engine, AnswerForm.choice(("still here",)))
    assert said(engine, tokens_of(engine, choice)) == "still here"
