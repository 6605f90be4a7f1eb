"""The embedded model, broken after every token: the long form of the promise, and how often FAST says other words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.history import Resumption
from service.events import ChatMessage
from tests.engine.test_resume import alone, ids_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TOKENS = 64
QUESTIONS = (
    "Write a short story about a lighthouse keeper who collects sounds.",
    "Explain step by step why the sky is blue and sunsets are red.",
    "List twelve everyday objects and one unusual use for each of them.",
)
SAMPLING = {
    "greedy": SamplingParams(max_tokens=TOKENS),
    "sampled": SamplingParams(max_tokens=TOKENS, temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=42),
}


def opened(model: Path) -> Engine:
    return Engine.open(EngineConfig(model=str(model), device="cpu", context=512, slots=1, prefill_chunk=32))


@pytest.fixture(scope="module")
def engines(embedded_model: Path) -> Iterator[tuple[Engine, Engine]]:
    first, second = opened(embedded_model), opened(embedded_model)
    yield first, second
    first.close()
    second.close()


@pytest.mark.parametrize("question", QUESTIONS, ids=("story", "why", "list"))
@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING)
def test_promise_08_broken_after_every_token(
    engines: tuple[Engine, Engine], question: str, params: SamplingParams
) -> None:
    first, second = engines
    prompt = first.text.prompt_ids([ChatMessage("user", question)])
    whole = ids_in(alone(first, prompt, params))
    other_words = 0
    for at in range(len(whole) + 1):
        steps = alone(second, prompt, params, Resumption(tuple(whole[:at])))
        assert whole[:at] + ids_in(steps) == whole, f"broken after {at}"
        fast = ids_in(alone(second, prompt, params, Resumption(tuple(whole[:at]), exact=False)))
        other_words += whole[:at] + fast != whole
    print(f"{len(whole)} tokens: exact {len(whole) + 1} of {len(whole) + 1}, FAST other words in {other_words}")
