"""Generic models on the CPU: against transformers' own generation in float32, and by the engine's promises."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.architecture import GenericArchitecture
from engine.errors import StepError, UnsupportedModelError
from engine.events import EagerReason, EngineEvent, StepDone
from engine.history import Resumption
from engine.outputs import Prefilled, Token
from tests.generic_checkpoints import CONTEXT, write_generic_folder

Write = Callable[[str], Path]
PROMPT = [9 + (7 * i) % 200 for i in range(230)]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a kind once."""
    root = tmp_path_factory.mktemp("models")
    return lambda kind: root / kind if (root / kind).exists() else write_generic_folder(root / kind, kind)


@pytest.fixture(scope="module")
def engine(write: Write) -> Iterator[Engine]:
    opened = Engine.open(EngineConfig(model=str(write("gpt2")), device="cpu", slots=2, prefill_chunk=64))
    yield opened
    opened.close()


def ids_of(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    context = engine.open_context()
    try:
        return [step.token_id for step in engine.generate(context, prompt, params) if isinstance(step, Token)]
    finally:
        context.close()


def never_ending(**options: Any) -> SamplingParams:
    return SamplingParams(**{"logit_bias": dict.fromkeys(range(8), -100.0), **options})


def reference_ids(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy ids of transformers in float32, with ids 0 to 7 forbidden."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=tokens,
        do_sample=False,
        suppress_tokens=list(range(8)),
    )
    return list(made[0, len(prompt) :].tolist())


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "gemma", "qwen2", "gpt_neo"])
def test_greedy_ids_equal_transformers_across_a_bucket_edge(write: Write, kind: str) -> None:
    opened = Engine.open(EngineConfig(model=str(write(kind)), device="cpu", slots=2, prefill_chunk=64))
    ours = ids_of(opened, PROMPT, never_ending(max_tokens=45))
    opened.close()
    assert ours == reference_ids(write(kind), PROMPT, 45)
    assert len(set(ours)) > 5, "an answer of one word over and over tells little"


def test_it_says_that_it_is_slower_and_why(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[EngineEvent] = []
    with caplog.at_level(logging.WARNING):
        opened = Engine.open(EngineConfig(model=str(write("gpt2")), device="cpu"), heard.append)
    assert "transformers plays it, slower" in caplog.text
    assert opened.info.decoder.startswith("transformers ")
    architecture = opened.info.architecture
    assert isinstance(architecture, GenericArchitecture)
    assert (architecture.family, architecture.layers, architecture.context) == ("GPT2LMHeadModel", 2, CONTEXT)
    assert "'GPT2LMHeadModel' is not native" in architecture.why
    assert opened.info.kv_bytes == 4 * CONTEXT * 2 * 2 * 32 * 4
    heard.clear()
    ids_of(opened, PROMPT[:20], never_ending(max_tokens=6))
    assert Counter(event.eager for event in heard if isinstance(event, StepDone)) == {EagerReason.NO_CUDA: 6}
    opened.close()


def test_a_model_whose_attention_takes_no_fixed_length_is_named(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Engine.open(EngineConfig(model=str(write("gpt_neo")), device="cpu")).close()
    assert "takes no fixed length, so no step of it can be captured" in caplog.text


def test_seeds_reproduce_sampled_turns_alone_and_interleaved(engine: Engine) -> None:
    wants = {seed: never_ending(max_tokens=20, temperature=1.0, top_p=0.9, seed=seed) for seed in (1, 2)}
    alone = {seed: ids_of(engine, PROMPT[:30], params) for seed, params in wants.items()}
    assert alone[1] == ids_of(engine, PROMPT[:30], wants[1])
    assert alone[1] != alone[2]
    contexts = {seed: engine.open_context() for seed in wants}
    turns = {seed: engine.generate(contexts[seed], PROMPT[:30], wants[seed]) for seed in wants}
    together: dict[int, list[int]] = {seed: [] for seed in wants}
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


def test_a_session_keeps_the_longest_prefix_and_is_cut_back_to_it(engine: Engine) -> None:
    context = engine.open_context()
    first = [s for s in engine.generate(context, PROMPT[:40], never_ending(max_tokens=8)) if isinstance(s, Token)]
    other = [*PROMPT[:40], first[0].token_id, 21, 22, 23]
    steps = list(engine.generate(context, other, never_ending(max_tokens=8)))
    assert isinstance(steps[0], Prefilled)
    assert (steps[0].cached, steps[0].total) == (41, 44)
    assert [s.token_id for s in steps if isinstance(s, Token)] == ids_of(engine, other, never_ending(max_tokens=8))
    context.close()


def test_a_broken_answer_goes_on_with_the_same_words(engine: Engine) -> None:
    params = never_ending(max_tokens=20, temperature=1.0, seed=3)
    whole = ids_of(engine, PROMPT[:90], params)
    context = engine.open_context()
    resumed = engine.generate(context, PROMPT[:90], params, Resumption(tuple(whole[:12])))
    assert [step.token_id for step in resumed if isinstance(step, Token)] == whole[12:]
    context.close()


def test_weights_cannot_be_replaced(engine: Engine) -> None:
    with pytest.raises(StepError, match="cannot be replaced"):
        engine.replace_weights(None)  # type: ignore[arg-type]


def test_fingerprints_tell_weights_apart(tmp_path: Path, engine: Engine) -> None:
    def fingerprint(seed: int) -> str:
        folder = write_generic_folder(tmp_path / str(seed), "gpt2", seed)
        opened = Engine.open(EngineConfig(model=str(folder), device="cpu", slots=2, prefill_chunk=64))
        opened.close()
        return opened.info.fingerprint

    assert fingerprint(0) == engine.info.fingerprint != fingerprint(1)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("mamba", "cannot play it from a static cache"), ("bert", "its logits differ by")],
)
def test_models_that_cannot_be_played_so_are_refused_at_start(write: Write, kind: str, sentence: str) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        Engine.open(EngineConfig(model=str(write(kind)), device="cpu"))
