"""Self-checks without a GPU: a graph is anything that can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.events import EngineEvent, SelfChecked, VerifyMismatch
from engine.outputs import Token
from engine.sampler import Stages
from engine.shapes import StepShape
from tests.checkpoints import Sizes, write_tiny_folder

SHAPES = [StepShape(bucket, 1, stages) for bucket in (256, 300) for stages in Stages]
PROMPT = [9 + (7 * i) % 200 for i in range(40)]
PARAMS = SamplingParams(max_tokens=12, temperature=1.0, frequency_penalty=0.5, seed=5)


class Graph:
    """Replays by running the step again, with an error added to its logits' choice."""

    def __init__(self, engine: Engine, shape: StepShape, wrong_by: int = 0) -> None:
        self._engine, self._shape, self._wrong_by = engine, shape, wrong_by

    def replay(self) -> None:
        self._engine._decoder.step(self._shape)
        self._engine._decoder.buffers.choice.token_id.add_(self._wrong_by)


@pytest.fixture
def heard() -> list[EngineEvent]:
    return []


@pytest.fixture
def engine(tmp_path: Path, heard: list[EngineEvent]) -> Iterator[Engine]:
    folder = write_tiny_folder(tmp_path, sizes=Sizes(context=300))
    opened = Engine.open(EngineConfig(model=str(folder), device="cpu", slots=2), heard.append)
    heard.clear()
    yield opened
    opened.close()


def capture(engine: Engine, wrong: StepShape | None = None) -> None:
    graphs: Any = engine._stepper.graphs._graphs
    for shape in SHAPES:
        graphs[shape] = Graph(engine, shape, wrong_by=int(shape == wrong))


def test_where_nothing_is_captured_there_is_nothing_to_check(engine: Engine, heard: list[EngineEvent]) -> None:
    assert not engine.self_check()
    assert heard == []


def test_every_graph_has_its_turn(engine: Engine, heard: list[EngineEvent]) -> None:
    capture(engine)
    for _ in range(2 * len(SHAPES)):
        assert engine.self_check()
    checked = [event.graph for event in heard if isinstance(event, SelfChecked) and event.sound]
    assert checked == [shape.name for shape in SHAPES] * 2


def test_a_mismatch_is_told_and_ends_replays(engine: Engine, heard: list[EngineEvent]) -> None:
    capture(engine, wrong=SHAPES[1])
    engine.self_check()
    assert not any(isinstance(event, VerifyMismatch) for event in heard)
    engine.self_check()
    mismatches = [event for event in heard if isinstance(event, VerifyMismatch)]
    assert [(event.graph, event.position) for event in mismatches] == [(SHAPES[1].name, 255)]
    assert engine._stepper._self_check_failed


def test_a_conversation_in_the_slot_that_was_used_goes_on_as_if_nothing_had_been(engine: Engine) -> None:
    capture(engine)
    first, second = engine.open_context(), engine.open_context()
    for context in (first, second):
        list(engine.generate(context, PROMPT, PARAMS))
    for _ in SHAPES:
        assert engine.self_check()
    again = [*PROMPT, 30, 31]
    answers = []
    for context in (first, second):
        answers.append([s.token_id for s in engine.generate(context, again, PARAMS) if isinstance(s, Token)])
        context.close()
    fresh = engine.open_context()
    list(engine.generate(fresh, PROMPT, PARAMS))
    expected = [s.token_id for s in engine.generate(fresh, again, PARAMS) if isinstance(s, Token)]
    assert answers == [expected, expected]


def test_full_and_busy_slots_are_left_alone(engine: Engine, heard: list[EngineEvent]) -> None:
    capture(engine)
    busy, full = engine.open_context(), engine.open_context()
    list(engine.generate(full, (PROMPT * 8)[:290], SamplingParams(max_tokens=12)))
    turn = engine.generate(busy, PROMPT, PARAMS)
    next(turn)
    assert engine.self_check()
    assert heard == [event for event in heard if not isinstance(event, SelfChecked)]
    turn.close()
    assert engine.self_check()
    assert isinstance(heard[-1], SelfChecked)
