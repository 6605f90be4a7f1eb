"""The engine on the CPU: against transformers in float32, and by its own promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import ContextLengthError, DeviceError, GraphError, InvalidRequestError, StepError
from engine.events import EagerReason, EngineEvent, PrefillDone, StepDone
from engine.history import Made, Segment
from engine.outputs import Prefilled, Token
from tests.checkpoints import LLAMA3_ROPE, Sizes, write_tiny_folder

CONTEXT = 600  # buckets 256, 512, 600
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama3_rope_untied": {"family": "llama", "rope": LLAMA3_ROPE, "tied": False},
    "mistral": {"family": "mistral", "tied": False},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}


def ids_of(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    context = engine.open_context()
    try:
        return [step.token_id for step in engine.generate(context, prompt, params) if isinstance(step, Token)]
    finally:
        context.close()


def never_ending(**options: Any) -> SamplingParams:
    return SamplingParams(**{"logit_bias": dict.fromkeys(range(8), -100.0), **options})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: write_tiny_folder(root / name, sizes=Sizes(context=CONTEXT), **options)
        for name, options in MODELS.items()
    }


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[Engine]:
    opened = Engine.open(EngineConfig(model=str(folders["llama"]), device="cpu", slots=3, prefill_chunk=16))
    yield opened
    opened.close()


def reference_ids(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy ids of transformers in float32, with ids 0 to 7 forbidden."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=tokens,
        do_sample=False,
        suppress_tokens=list(range(8)),
        pad_token_id=0,
        repetition_penalty=1.0,
    )
    return list(made[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", MODELS)
def test_greedy_ids_equal_transformers_across_two_bucket_edges(folders: dict[str, Path], name: str) -> None:
    prompt = [9 + (7 * i) % 200 for i in range(230)]
    engine = Engine.open(EngineConfig(model=str(folders[name]), device="cpu", slots=1, prefill_chunk=64))
    ours = ids_of(engine, prompt, never_ending(max_tokens=320))
    engine.close()
    assert len(ours) == 320
    assert ours == reference_ids(folders[name], prompt, 320)


def test_every_answer_token_is_one_counted_step(folders: dict[str, Path]) -> None:
    heard: list[EngineEvent] = []
    engine = Engine.open(EngineConfig(model=str(folders["llama"]), device="cpu", prefill_chunk=10), heard.append)
    heard.clear()
    ids_of(engine, list(range(9, 40)), never_ending(max_tokens=12))
    steps = Counter(event.eager for event in heard if isinstance(event, StepDone))
    assert steps == {EagerReason.NO_CUDA: 12}
    assert [event.tokens for event in heard if isinstance(event, PrefillDone)] == [10, 10, 10]
    engine.close()


def test_a_turn_reports_its_prefill_then_its_tokens(engine: Engine) -> None:
    context = engine.open_context()
    prompt = list(range(9, 49))
    first = list(engine.generate(context, prompt, never_ending(max_tokens=3)))
    assert [step for step in first if isinstance(step, Prefilled)] == [
        Prefilled(0, 0, 40),
        Prefilled(0, 16, 40),
        Prefilled(0, 32, 40),
        Prefilled(0, 39, 40),
    ]
    answer = [step.token_id for step in first if isinstance(step, Token)]
    assert context.tokens == (*prompt, *answer[:-1])
    second = list(engine.generate(context, [*prompt, *answer, 50, 51], never_ending(max_tokens=2)))
    made = (*(Segment(Made.PREFILL, n, n) for n in (16, 16, 7)), Segment(Made.DECODE, 3, 1))
    assert second[0] == Prefilled(42, 42, 45, made), "what the context holds is not computed again"
    context.close()


def test_a_warm_context_answers_as_a_cold_one(engine: Engine) -> None:
    prompt = list(range(9, 60))
    warm = engine.open_context()
    list(engine.generate(warm, prompt[:30], never_ending(max_tokens=5)))
    again = [s.token_id for s in engine.generate(warm, prompt, never_ending(max_tokens=20)) if isinstance(s, Token)]
    warm.close()
    assert again == ids_of(engine, prompt, never_ending(max_tokens=20))


def test_the_same_prompt_again_recomputes_only_its_last_token(engine: Engine) -> None:
    context = engine.open_context()
    prompt = list(range(9, 40))
    first = [s for s in engine.generate(context, prompt, never_ending(max_tokens=4)) if isinstance(s, Token)]
    steps = list(engine.generate(context, prompt, never_ending(max_tokens=4)))
    assert steps[0] == Prefilled(30, 30, 31, (Segment(Made.PREFILL, 16, 16), Segment(Made.PREFILL, 14, 14)))
    assert steps[1:] == first
    context.close()


def test_interleaved_turns_do_not_change_each_others_tokens(engine: Engine) -> None:
    prompts = {seed: [seed + 10, 20, 30, *range(40, 40 + seed)] for seed in range(3)}
    wants = {seed: never_ending(max_tokens=30, temperature=0.9, top_p=0.95, seed=seed) for seed in prompts}
    alone = {seed: ids_of(engine, prompts[seed], wants[seed]) for seed in prompts}
    contexts = {seed: engine.open_context() for seed in prompts}
    turns = {seed: engine.generate(contexts[seed], prompts[seed], wants[seed]) for seed in prompts}
    together: dict[int, list[int]] = {seed: [] for seed in prompts}
    while turns:
        for seed in list(turns):
            step = next(turns[seed], None)
            if step is None:
                del turns[seed]
            elif isinstance(step, Token):
                together[seed].append(step.token_id)
    for context in contexts.values():
        context.close()
    assert together == alone


def test_closing_a_turn_cancels_it_and_leaves_the_context_usable(engine: Engine) -> None:
    context = engine.open_context()
    prompt = list(range(9, 40))
    expected = ids_of(engine, prompt, never_ending(max_tokens=10))
    with closing(engine.generate(context, prompt, never_ending(max_tokens=100))) as turn:
        for step in turn:
            if isinstance(step, Token):
                break
    assert context.tokens == tuple(prompt)
    again = [s.token_id for s in engine.generate(context, prompt, never_ending(max_tokens=10)) if isinstance(s, Token)]
    assert again == expected
    context.close()


def test_a_turn_ends_with_an_end_token(engine: Engine) -> None:
    end = next(iter(engine.text.end_ids))
    context = engine.open_context()
    steps = list(engine.generate(context, [9, 10, 11], SamplingParams(max_tokens=50, logit_bias={end: 100.0})))
    assert [s for s in steps if isinstance(s, Token)] == [Token(end, True, EagerReason.NO_CUDA)]
    context.close()


def test_a_turn_ends_where_the_context_ends(engine: Engine) -> None:
    prompt = [9 + i % 200 for i in range(CONTEXT - 5)]
    made = ids_of(engine, prompt, never_ending())
    assert len(made) == 6, "the last token needs no place of its own"
    full = [9 + i % 200 for i in range(CONTEXT)]
    assert len(ids_of(engine, full, never_ending())) == 1


def test_eng_10_a_prompt_beyond_the_context_is_refused_with_both_counts(engine: Engine) -> None:
    context = engine.open_context()
    with pytest.raises(ContextLengthError, match=f"has {CONTEXT + 1} tokens; the context holds {CONTEXT}"):
        engine.generate(context, [9] * (CONTEXT + 1), SamplingParams())
    context.close()


def test_what_cannot_be_played_is_refused_before_the_first_step(engine: Engine) -> None:
    context = engine.open_context()
    vocabulary = engine.info.architecture.vocabulary
    for prompt, params in (
        ([], SamplingParams()),
        ([vocabulary], SamplingParams()),
        ([9], SamplingParams(stop_token_ids=(vocabulary,))),
        ([9], SamplingParams(logit_bias={vocabulary: 1.0})),
    ):
        with pytest.raises(InvalidRequestError):
            engine.generate(context, prompt, params)
    turn = engine.generate(context, [9, 10], SamplingParams(max_tokens=2))
    next(turn)
    with pytest.raises(StepError, match="in use by another turn"):
        engine.generate(context, [9, 10], SamplingParams())
    turn.close()
    context.close()
    with pytest.raises(StepError, match="closed"):
        engine.generate(context, [9, 10], SamplingParams())


def test_logprobs_are_reported_where_asked_for(engine: Engine) -> None:
    context = engine.open_context()
    wants = SamplingParams(max_tokens=3, logprobs=True, top_logprobs=4)
    tokens = [s for s in engine.generate(context, [9, 10], wants) if isinstance(s, Token)]
    for token in tokens:
        assert len(token.top) == 4
        assert token.logprob == token.top[0][1]
        assert token.top[0][0] == token.token_id, "greedy takes the likeliest"
        assert [value for _, value in token.top] == sorted((v for _, v in token.top), reverse=True)
    context.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_without_cuda_what_needs_it_is_refused_at_start(folders: dict[str, Path]) -> None:
    with pytest.raises(GraphError, match="no CUDA device"):
        Engine.open(EngineConfig(model=str(folders["llama"]), graphs="strict"))
    with pytest.raises(DeviceError, match="torch sees none"):
        Engine.open(EngineConfig(model=str(folders["llama"]), device="cuda"))


def test_a_context_longer_than_the_models_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequestError, match=f"between 2 and the model's {CONTEXT}"):
        Engine.open(EngineConfig(model=str(folders["llama"]), device="cpu", context=CONTEXT + 1))


def test_the_fingerprint_tells_numerics_apart(folders: dict[str, Path], engine: Engine) -> None:
    def fingerprint(**options: Any) -> str:
        other = Engine.open(
            EngineConfig(device="cpu", **{"model": str(folders["llama"]), "prefill_chunk": 16, **options})
        )
        other.close()
        return other.info.fingerprint

    assert fingerprint() == engine.info.fingerprint
    assert len({engine.info.fingerprint, fingerprint(precision="bfloat16"), fingerprint(prefill_chunk=8)}) == 3
    assert fingerprint(model=str(folders["qwen2"])) != engine.info.fingerprint
