"""The embedded model's greedy answers against transformers in float32, on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.checkpoint import open_checkpoint
from engine.outputs import Token
from tests.checkpoints import tiny_config

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain what a CUDA graph is in two sentences.",
    "What is 17 + 25?",
    "List the days of the week.",
    "Translate 'good morning' to Spanish.",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "Tell me a joke about computers.",
)
OPENINGS = ("", "Please answer briefly. ", "In simple words: ", "For a child: ", "As a poem: ")
PROMPTS = tuple(opening + question for opening in OPENINGS for question in QUESTIONS)
TOKENS = 64


@dataclass(frozen=True)
class Message:
    content: str
    role: str = "user"
    name: str | None = None


@pytest.fixture(scope="module")
def engine(embedded_model: object) -> Iterator[Engine]:
    opened = Engine.open(EngineConfig(device="cpu", context=512, slots=1))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reference(embedded_model: object) -> Any:
    """transformers' decoder of the same shape, with the checkpoint's tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint("embedded")
    config = LlamaConfig(**tiny_config(checkpoint.architecture, torch.float32))
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    tensors = {stored.name: stored.data.clone() for stored in checkpoint.tensors()}
    left_out, unknown = model.load_state_dict(tensors, strict=False)
    assert set(left_out) <= {"lm_head.weight"}
    assert not unknown
    model.tie_weights()
    fresh = type(model.model.rotary_emb)(config)  # its table is a buffer that no checkpoint holds
    model.model.rotary_emb = fresh
    return model


def check(engine: Engine, reference: Any, prompts: tuple[str, ...]) -> None:
    ends = sorted(engine.text.end_ids)
    for prompt in prompts:
        ids = engine.text.prompt_ids([Message(prompt)])
        context = engine.open_context()
        ours = [
            step.token_id
            for step in engine.generate(context, ids, SamplingParams(max_tokens=TOKENS))
            if isinstance(step, Token)
        ]
        context.close()
        made = reference.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
        assert ours == made[0, len(ids) :].tolist(), prompt


def test_greedy_ids_equal_transformers(engine: Engine, reference: Any) -> None:
    check(engine, reference, (PROMPTS[0], PROMPTS[23], PROMPTS[41]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_greedy_ids_equal_transformers_on_50_prompts(engine: Engine, reference: Any) -> None:
    assert len(PROMPTS) == 50
    check(engine, reference, PROMPTS)
