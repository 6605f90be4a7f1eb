"""On a CUDA device: an answer with a form is all replays, and the same words as eagerly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.outputs import Token
from engine.text import AnswerForm
from tests.checkpoints import Sizes, write_tiny_folder
from tests.schemas import SchemaDraw, faults

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONTEXT, PROMPT = 1024, [9, 10, 11]


def answers(folder: Path, graphs: str) -> list[list[Token]]:
    """Answers with forms and without, in turns, in two slots."""
    engine = Engine.open(EngineConfig(model=str(folder), device="cuda", slots=2, graphs=graphs))  # type: ignore[arg-type]
    try:
        tokenizer = engine.text.tokenizer
        closers = [tokenizer.encode(text)[0] for text in ('"', "}", "]")]
        bias = dict.fromkeys((*closers, *engine.text.end_ids), 4.0)
        contexts = [engine.open_context() for _ in range(2)]
        made = []
        for seed in range(16):
            schema = json.dumps(SchemaDraw(seed).schema())
            wishes = {"temperature": float(seed % 2), "seed": seed, "max_tokens": 900, "logit_bias": bias}
            grammar = engine.text.grammar(AnswerForm.json_schema(schema))
            for params in (SamplingParams(**wishes, grammar=grammar), SamplingParams(**wishes | {"max_tokens": 20})):  # type: ignore[arg-type]
                steps = engine.generate(contexts[seed % 2], PROMPT, params)
                made.append([step for step in steps if isinstance(step, Token)])
            if made[-2][-1].end:  # a greedy answer of random weights may go in circles
                text = tokenizer.decode(token.token_id for token in made[-2][:-1])
                assert not faults(schema, text)
        return made
    finally:
        engine.close()


def test_an_answer_with_a_form_is_all_replays_and_the_same_words(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, sizes=Sizes(context=CONTEXT, vocabulary=333))
    replayed, eager = answers(folder, "on"), answers(folder, "off")
    assert [[token.token_id for token in turn] for turn in replayed] == [
        [token.token_id for token in turn] for turn in eager
    ]
    assert not [token.eager for turn in replayed for token in turn if token.eager is not None]
