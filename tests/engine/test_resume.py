"""Answers that are broken off and go on: with the same words where that is promised, on another engine too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.cache import Context
from engine.errors import InvalidRequestError, ReplayError
from engine.events import EagerReason
from engine.history import Made, Resumption, Segment
from engine.outputs import Prefilled, Replayed, Token, TurnStep
from tests.checkpoints import Sizes, write_tiny_folder

CONTEXT, CHUNK, TOKENS = 300, 16, 64
PROMPTS = ([9, 10, 11], [9 + (7 * i) % 200 for i in range(40)], [30 + (3 * i) % 90 for i in range(230)])
BIAS = dict.fromkeys(range(8), -100.0)  # no end token before its time
SAMPLING = {
    "greedy": SamplingParams(max_tokens=TOKENS, stop_token_ids=(3,)),
    "sampled": SamplingParams(
        max_tokens=TOKENS, temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.4, seed=7,
        logit_bias=BIAS,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(context=CONTEXT))


def opened(folder: Path, **options: Any) -> Engine:
    settings = {"model": str(folder), "device": "cpu", "slots": 2, "prefill_chunk": CHUNK, "threads": 1}
    return Engine.open(EngineConfig(**{**settings, **options}))


@pytest.fixture(scope="module")
def first(folder: Path) -> Iterator[Engine]:
    engine = opened(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def second(folder: Path) -> Iterator[Engine]:
    engine = opened(folder)
    yield engine
    engine.close()


def steps_of(
    engine: Engine,
    context: Context,
    prompt: Sequence[int],
    params: SamplingParams,
    resumption: Resumption | None = None,
    tokens: int | None = None,
) -> list[TurnStep]:
    """The turn's steps, broken off after `tokens` tokens."""
    steps: list[TurnStep] = []
    made = 0
    with closing(engine.generate(context, prompt, params, resumption)) as turn:
        for step in turn:
            steps.append(step)
            made += isinstance(step, Token)
            if made == tokens:
                break
    return steps


def ids_in(steps: Sequence[TurnStep]) -> list[int]:
    return [step.token_id for step in steps if isinstance(step, Token)]


def started(steps: Sequence[TurnStep]) -> Prefilled:
    assert isinstance(steps[0], Prefilled)
    return steps[0]


def alone(engine: Engine, prompt: Sequence[int], params: SamplingParams, resumption: Resumption | None = None) -> Any:
    context = engine.open_context()
    try:
        return steps_of(engine, context, prompt, params, resumption)
    finally:
        context.close()


def break_and_resume(first: Engine, second: Engine, prompt: list[int], params: SamplingParams, at: range) -> None:
    whole = ids_in(alone(first, prompt, params))
    assert len(whole) == TOKENS
    for tokens in at:
        steps = alone(second, prompt, params, Resumption(tuple(whole[:tokens])))
        assert whole[:tokens] + ids_in(steps) == whole, f"broken after {tokens}"
        assert sum(isinstance(step, Replayed) for step in steps) == (tokens if tokens < TOKENS else 0)


def test_promise_08_broken_after_any_token_and_resumed_elsewhere_the_words_are_the_same(
    first: Engine, second: Engine
) -> None:
    break_and_resume(first, second, PROMPTS[0], SAMPLING["greedy"], range(TOKENS + 1))


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"prompt{len(prompt)}")
@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_promise_08_whatever_the_prompt_and_the_sampling(
    first: Engine, second: Engine, prompt: list[int], params: SamplingParams, every: int
) -> None:
    break_and_resume(first, second, prompt, params, range(every - 1, TOKENS + 1, every))


def broken_conversation(engine: Engine, at: int) -> tuple[list[int], list[int], Prefilled, SamplingParams]:
    """Three turns of one session, each over a cut chunk of the one before; the last is broken off after `at` tokens."""
    context = engine.open_context()
    params = SamplingParams(max_tokens=30, temperature=1.0, presence_penalty=0.3, seed=3, logit_bias=BIAS)
    prompt = list(PROMPTS[1])
    answer = ids_in(steps_of(engine, context, prompt, params, tokens=11))
    prompt = [*prompt, *answer[:9], *range(60, 90)]  # the last two are taken back, then 30 are said
    steps_of(engine, context, prompt, params, tokens=2)
    prompt = [*prompt[:-7], *range(100, 121)]  # the chunk that ended here loses its last rows
    steps = steps_of(engine, context, prompt, params, tokens=at)
    context.close()
    return prompt, ids_in(steps), started(steps), params


@pytest.mark.parametrize("at", [1, 2, 13, 29])
def test_a_sessions_history_is_repeated_as_it_was_made(first: Engine, second: Engine, at: int) -> None:
    prompt, whole, _, params = broken_conversation(first, 30)
    _, emitted, begun, _ = broken_conversation(first, at)
    assert emitted == whole[:at]
    kinds = [(segment.made, segment.tokens < segment.rows) for segment in begun.history]
    assert (Made.PREFILL, True) in kinds
    assert (Made.DECODE, False) in kinds

    context = second.open_context()
    resumption = Resumption(tuple(emitted), history=begun.history, read=begun.read)
    steps = steps_of(second, context, prompt, params, resumption)
    assert emitted + ids_in(steps) == whole
    assert started(steps).history == begun.history, "it can be resumed again"
    made = [segment.made for segment in context.segments]
    assert made == [segment.made for segment in begun.history] + [Made.PREFILL] * 2 + [Made.DECODE]
    context.close()


def test_keys_and_values_of_a_repeated_history_are_the_same_bits(first: Engine, second: Engine) -> None:
    prompt, emitted, begun, params = broken_conversation(first, 20)
    context, kept = second.open_context(), first.open_context()
    resumption = Resumption(tuple(emitted), history=begun.history)
    steps_of(second, context, prompt, params, resumption, tokens=1)
    assert kept.ids == []
    steps_of(first, kept, prompt, params, resumption, tokens=1)
    ours, theirs = first._decoder.cache, second._decoder.cache
    length = len(context.ids)
    assert kept.segments == context.segments
    for mine, other in zip(ours.layers, theirs.layers, strict=True):  # type: ignore[attr-defined]
        assert (mine.k[kept.slot, :, :length] == other.k[context.slot, :, :length]).all()
        assert (mine.v[kept.slot, :, :length] == other.v[context.slot, :, :length]).all()
    context.close()
    kept.close()


def test_where_the_context_is_still_there_nothing_is_repeated(first: Engine) -> None:
    params = SAMPLING["sampled"]
    whole = ids_in(alone(first, PROMPTS[1], params))
    context = first.open_context()
    emitted = ids_in(steps_of(first, context, PROMPTS[1], params, tokens=20))
    steps = steps_of(first, context, PROMPTS[1], params, Resumption(tuple(emitted)))
    assert emitted + ids_in(steps) == whole
    assert not any(isinstance(step, Replayed) for step in steps)
    assert started(steps).cached == len(PROMPTS[1])
    context.close()


def test_keys_and_values_made_in_another_way_are_not_used(first: Engine) -> None:
    """A context that holds the same ids, read in chunks from elsewhere, would give other bits."""
    params = SAMPLING["sampled"]
    whole = ids_in(alone(first, PROMPTS[1], params))
    context = first.open_context()
    steps_of(first, context, PROMPTS[1][:25], params, tokens=1)
    steps_of(first, context, [*PROMPTS[1], *whole[:20]], params, tokens=1)
    steps = steps_of(first, context, PROMPTS[1], params, Resumption(tuple(whole[:20])))
    assert whole[:20] + ids_in(steps) == whole
    assert started(steps).cached == CHUNK, "only the first chunk is made alike"
    context.close()


def test_fast_reads_the_answer_like_a_prompt_and_says_how_to_repeat_that(first: Engine, second: Engine) -> None:
    params = SAMPLING["sampled"]
    whole = ids_in(alone(first, PROMPTS[0], params))
    steps = alone(second, PROMPTS[0], params, Resumption(tuple(whole[:40]), exact=False))
    rest = ids_in(steps)
    assert len(rest) == TOKENS - 40
    assert not any(isinstance(step, Replayed) for step in steps)
    assert started(steps).read == 40
    again = alone(first, PROMPTS[0], params, Resumption((*whole[:40], *rest[:9]), history=(), read=40))
    assert ids_in(again) == rest[9:]


def test_an_answer_that_is_not_repeated_is_told_at_its_first_token(first: Engine) -> None:
    params = SAMPLING["greedy"]
    whole = ids_in(alone(first, PROMPTS[1], params))
    wrong = [*whole[:5], whole[5] + 1, *whole[6:9]]
    with pytest.raises(ReplayError) as told:
        alone(first, PROMPTS[1], params, Resumption(tuple(wrong)))
    assert told.value.index == 5


def test_an_answer_that_was_complete_ends_at_once(first: Engine) -> None:
    params = SamplingParams(max_tokens=6)
    whole = ids_in(alone(first, PROMPTS[1], params))
    assert [type(step) for step in alone(first, PROMPTS[1], params, Resumption(tuple(whole)))] == [Prefilled] * 4
    at = whole.index(whole[-1])
    params = SamplingParams(max_tokens=6, stop_token_ids=(whole[at],))
    *_, last = alone(first, PROMPTS[1], params, Resumption(tuple(whole[:at])))
    assert last == Token(whole[at], True, EagerReason.NO_CUDA)


@pytest.mark.parametrize(
    ("resumption", "field"),
    [
        (Resumption((9,) * (TOKENS + 1)), "resume.token_ids"),
        (Resumption((2,)), "resume.token_ids[0]"),
        (Resumption((3,)), "resume.token_ids[0]"),
        (Resumption((10**6,)), "resume.token_ids[0]"),
        (Resumption((9,), history=(Segment(Made.PREFILL, 3, 3),)), "resume.resume_token"),
        (Resumption((9,), history=(Segment(Made.PREFILL, 2, CHUNK + 1),)), "resume.resume_token"),
        (Resumption((9,), history=(Segment(Made.PREFILL, 0, 1),)), "resume.resume_token"),
        (Resumption((9,), history=(Segment(Made.DECODE, -1, 1), Segment(Made.DECODE, 1, 1))), "resume.resume_token"),
        (Resumption((9,), read=2), "resume.resume_token"),
    ],
)
def test_a_resumption_that_cannot_be_is_refused_by_name(first: Engine, resumption: Resumption, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        alone(first, PROMPTS[0], SAMPLING["greedy"], resumption)
    assert refused.value.field == field


def test_the_fingerprint_tells_contexts_apart(folder: Path, first: Engine, second: Engine) -> None:
    other = opened(folder, context=CONTEXT - 1)
    assert first.info.fingerprint == second.info.fingerprint != other.info.fingerprint
    other.close()
