"""The embedded model, broken after every token: the long form of the promise, and how often FAST says other words.

CI runs one question of each kind, broken after every 32nd token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.history import Resumption
from engine.text import AnswerForm
from service.events import ChatMessage
from tests.engine.test_resume import alone, ids_in

pytestmark = pytest.mark.timeout(3600)

TOKENS = 64
QUESTIONS = (
    "Write a short story about a lighthouse keeper who collects sounds.",
    "Explain step by step why the sky is blue and sunsets are red.",
    "List twelve everyday objects and one unusual use for each of them.",
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 20, "maxLength": 80},
            "parts": {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 5},
            "length": {"type": "integer"},
        },
        "required": ["title", "parts", "length"],
        "additionalProperties": False,
    }
)
SAMPLED = SamplingParams(max_tokens=TOKENS, temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=42)
SAMPLING = {
    "greedy": (SamplingParams(max_tokens=TOKENS), None),
    "sampled": (SAMPLED, None),
    "json": (SAMPLED, SCHEMA),
    "json-greedy": (SamplingParams(max_tokens=TOKENS, repetition_penalty=1.1), SCHEMA),
}


def opened(model: Path) -> Engine:
    return Engine.open(EngineConfig(model=str(model), device="cpu", context=512, slots=1, prefill_chunk=32))


@pytest.fixture(scope="module")
def engines(embedded_model: Path) -> Iterator[tuple[Engine, Engine]]:
    first, second = opened(embedded_model), opened(embedded_model)
    yield first, second
    first.close()
    second.close()


def broken_and_resumed(engines: tuple[Engine, Engine], question: str, kind: str, every: int) -> str:
    """Break the answer after each `every`th token and at both ends, and go on with it elsewhere. What came out."""
    first, second = engines
    params, schema = SAMPLING[kind]
    if schema is not None:
        params = replace(params, grammar=first.text.grammar(AnswerForm.json_schema(schema)))
    prompt = first.text.prompt_ids([ChatMessage("user", question)])
    whole = ids_in(alone(first, prompt, params))
    breaks = sorted({*range(0, len(whole) + 1, every), len(whole)})
    other_words = 0
    for at in breaks:
        if schema is not None:  # the second engine has compiled the form by itself
            params = replace(params, grammar=second.text.grammar(AnswerForm.json_schema(schema)))
        steps = alone(second, prompt, params, Resumption(tuple(whole[:at])))
        assert whole[:at] + ids_in(steps) == whole, f"broken after {at}"
        fast = ids_in(alone(second, prompt, params, Resumption(tuple(whole[:at]), exact=False)))
        other_words += whole[:at] + fast != whole
    return f"{len(whole)} tokens: exact {len(breaks)} of {len(breaks)}, FAST other words in {other_words}"


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=("story", "why", "list"))
@pytest.mark.parametrize("kind", SAMPLING)
def test_promise_08_broken_after_every_token(engines: tuple[Engine, Engine], question: str, kind: str) -> None:
    print(broken_and_resumed(engines, question, kind, every=1))


@pytest.mark.parametrize("kind", ["sampled", "json"])
def test_promise_08_broken_after_a_few_tokens(engines: tuple[Engine, Engine], kind: str) -> None:
    broken_and_resumed(engines, QUESTIONS[0], kind, every=32)
