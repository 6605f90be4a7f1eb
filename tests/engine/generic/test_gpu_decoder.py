"""On a CUDA device: generic steps are captured where they can be, and counted where they cannot."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import GraphError
from engine.events import CaptureOutcome, EagerReason, EngineEvent, GraphCaptured, StepDone
from engine.outputs import Token
from tests.generic_checkpoints import write_generic_folder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPT = [9 + (7 * i) % 200 for i in range(230)]
FORBIDDEN = dict.fromkeys(range(8), -100.0)
TURNS = {
    "greedy": SamplingParams(max_tokens=45, logit_bias=FORBIDDEN),
    "truncated": SamplingParams(max_tokens=45, logit_bias=FORBIDDEN, temperature=1.0, top_p=0.9, seed=7),
}


def played(folder: Path, heard: list[EngineEvent], **options: object) -> dict[str, list[int]]:
    """The ids of every turn, from alternating slots."""
    config = EngineConfig(**{"model": str(folder), "device": "cuda", "slots": 2, **options})  # type: ignore[arg-type]
    engine = Engine.open(config, heard.append)
    first, second = engine.open_context(), engine.open_context()
    ids: dict[str, list[int]] = {}
    for name, params in TURNS.items():
        for context in (first, second):
            made = [step for step in engine.generate(context, PROMPT, params) if isinstance(step, Token)]
            assert ids.setdefault(name, [token.token_id for token in made]) == [token.token_id for token in made]
    engine.close()
    return ids


def eager_steps(heard: list[EngineEvent]) -> Counter[EagerReason]:
    return Counter(event.eager for event in heard if isinstance(event, StepDone) and event.eager is not None)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "gemma", "qwen2"])
def test_graph_and_eager_give_the_same_ids_across_a_bucket_edge(tmp_path: Path, kind: str, precision: str) -> None:
    folder = write_generic_folder(tmp_path / kind, kind)
    replayed: list[EngineEvent] = []
    eager: list[EngineEvent] = []
    assert played(folder, replayed, precision=precision) == played(folder, eager, precision=precision, graphs="off")
    assert set(eager_steps(replayed)) == {EagerReason.WARMING_UP}, "steady state has no eager step"
    assert eager_steps(eager) == {EagerReason.DISABLED: 4 * 45}


def test_what_cannot_be_captured_is_played_eagerly_and_counted(tmp_path: Path) -> None:
    folder = write_generic_folder(tmp_path / "m", "gpt_neo")
    heard: list[EngineEvent] = []
    assert played(folder, heard) == played(folder, [], graphs="off")
    outcomes = {event.outcome for event in heard if isinstance(event, GraphCaptured)}
    assert outcomes == {CaptureOutcome.FAILED}
    assert eager_steps(heard)[EagerReason.CAPTURE_FAILED] == 4 * 45
    with pytest.raises(GraphError, match=r"0 of \d+ were captured \(capture_failed\)"):
        Engine.open(EngineConfig(model=str(folder), device="cuda", graphs="strict"))
