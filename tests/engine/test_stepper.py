"""What the stepper says of graphs, without a GPU: a graph is anything that can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import GraphError
from engine.events import EagerReason, EngineEvent, PrefillDone
from engine.shapes import ChunkShape, StepShape, chunk_shapes
from tests.checkpoints import Sizes, write_tiny_folder

Opener = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(context=600))


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens engines that take the CPU for a device with graphs."""
    engines = []

    class Stream:
        def synchronize(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)

    def one(heard: list[EngineEvent] | None = None, **options: Any) -> Engine:
        listener = (lambda _: None) if heard is None else heard.append
        engine = Engine.open(EngineConfig(**{"model": str(folder), "device": "cpu", **options}), listener)
        engine._stepper._on_cuda = True
        engines.append(engine)
        return engine

    yield one
    for engine in engines:
        engine._stepper._on_cuda = False
        engine.close()


class Chunks:
    """Prefill in padded chunks, as on a GPU."""

    def __init__(self, engine: Engine) -> None:
        self.shapes = chunk_shapes(64)
        self._engine = engine
        self._placed: tuple[int, int, Sequence[int]] = (0, 0, ())

    def shape_for(self, tokens: int) -> ChunkShape:
        return next(shape for shape in self.shapes if shape.rows >= tokens)

    def place(self, slot: int, start: int, ids: Sequence[int]) -> None:
        self._placed = (slot, start, ids)

    def run(self, shape: ChunkShape) -> None:
        slot, start, ids = self._placed
        assert len(ids) <= shape.rows
        self._engine._decoder.prefill(slot, start, torch.tensor(ids))

    def graph_of(self, shape: ChunkShape) -> Any:
        class Graph:
            def replay(_) -> None:  # noqa: N805 - `self` is the chunks
                self.run(shape)

        return Graph()


def capture_steps(engine: Engine) -> None:
    graphs: Any = engine._stepper.graphs._graphs
    for shape in engine._stepper._shapes:
        graphs[shape] = object()


def read(engine: Engine, tokens: int) -> None:
    context = engine.open_context()
    with closing(engine.generate(context, list(range(9, 9 + tokens)), SamplingParams(max_tokens=1))) as turn:
        while len(context.tokens) < tokens - 1:
            next(turn)
    context.close()


def test_a_chunk_says_which_graph_it_replayed_or_why_none(opened: Opener) -> None:
    heard: list[EngineEvent] = []
    engine = opened(heard, prefill_chunk=64)
    chunks: Any = Chunks(engine)
    engine._stepper._chunks = chunks
    pool: Any = engine._stepper.graphs
    pool._graphs[ChunkShape(16)] = chunks.graph_of(ChunkShape(16))
    pool._failed[ChunkShape(64)] = EagerReason.OUT_OF_MEMORY
    heard.clear()

    read(engine, 64 + 10 + 1)

    told = [(event.tokens, event.graph, event.eager) for event in heard if isinstance(event, PrefillDone)]
    assert told == [(64, None, EagerReason.OUT_OF_MEMORY), (10, "prefill_r16", None)]


def test_on_the_cpu_a_chunk_says_that_there_is_no_cuda(folder: Path) -> None:
    heard: list[EngineEvent] = []
    engine = Engine.open(EngineConfig(model=str(folder), device="cpu"), heard.append)
    read(engine, 20)
    engine.close()

    assert [event.eager for event in heard if isinstance(event, PrefillDone)] == [EagerReason.NO_CUDA]


def test_strict_asks_for_the_configured_stages_alone(opened: Opener) -> None:
    engine = opened(graph_stages=("truncated", "logprobs"))
    capture_steps(engine)

    engine._require_graphs()
    assert (engine.graphs.enabled, engine.graphs.eager_reason) == (True, None)

    pool: Any = engine._stepper.graphs
    lost = engine._stepper.captured_steps[-1]
    del pool._graphs[lost]
    with pytest.raises(GraphError, match=r"5 of 6 were captured"):
        engine._require_graphs()


def test_strict_asks_for_no_step_where_the_graphs_context_holds_none(opened: Opener) -> None:
    engine = opened(graph_context=200)

    assert not any(isinstance(shape, StepShape) for shape in engine._stepper._shapes)
    engine._require_graphs()
    state = engine.graphs
    assert (state.enabled, state.eager_reason) == (False, EagerReason.CONTEXT_BEYOND_GRAPHS)


@pytest.mark.parametrize(("asked", "covered"), [(None, 600), (600, 600), (599, 512), (300, 256), (255, 0)])
def test_the_graphs_context_is_what_a_replay_reads(opened: Opener, asked: int | None, covered: int) -> None:
    assert opened(graph_context=asked).graphs.context == covered


def test_strict_refuses_where_a_replay_was_found_wrong(opened: Opener) -> None:
    engine = opened()
    capture_steps(engine)
    engine._stepper._self_check_failed = True

    with pytest.raises(GraphError, match="self_check_failed"):
        engine._require_graphs()
