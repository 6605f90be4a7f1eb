"""On a CUDA device, in bf16 and with graphs: broken answers go on bit for bit, caches move to the host and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.events import EngineEvent, SelfChecked
from engine.history import Resumption
from engine.outputs import Prefilled, Replayed, Token
from tests.checkpoints import Sizes, write_tiny_folder
from tests.engine.test_resume import PROMPTS, SAMPLING, TOKENS, alone, broken_conversation, ids_in, started, steps_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONTEXT = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(context=CONTEXT))


def opened(folder: Path, heard: list[EngineEvent] | None = None, graphs: str = "strict") -> Engine:
    config = EngineConfig(model=str(folder), device="cuda", slots=2, prefill_chunk=64, graphs=graphs)  # type: ignore[arg-type]
    return Engine.open(config, (heard if heard is not None else []).append)


@pytest.fixture(scope="module")
def first(folder: Path) -> Iterator[Engine]:
    engine = opened(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["strict", "off"])
def second(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = opened(folder, graphs=request.param)
    yield engine
    engine.close()


def bits(engine: Engine, slot: int, tokens: int) -> list[torch.Tensor]:
    return [view.clone() for view in engine._decoder.cache.held(slot, tokens)]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(one.view(torch.int16), other.view(torch.int16)) for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"prompt{len(prompt)}")
@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING)
def test_promise_08_broken_answers_go_on_bit_for_bit(
    first: Engine, second: Engine, prompt: list[int], params: SamplingParams
) -> None:
    assert first.info.fingerprint == second.info.fingerprint
    context = first.open_context()
    whole = ids_in(steps_of(first, context, prompt, params))
    kept = len(context.ids)
    expected = bits(first, context.slot, kept)
    context.close()
    for at in range(0, TOKENS + 1, 8):
        context = second.open_context()
        steps = steps_of(second, context, prompt, params, Resumption(tuple(whole[:at])))
        assert whole[:at] + ids_in(steps) == whole, f"broken after {at}"
        if at < TOKENS:
            assert same(bits(second, context.slot, kept), expected), f"broken after {at}"
        context.close()


def test_a_sessions_history_is_repeated_bit_for_bit(first: Engine, second: Engine) -> None:
    prompt, whole, _, params = broken_conversation(first, 30)
    _, emitted, begun, _ = broken_conversation(first, 13)
    context = second.open_context()
    resumption = Resumption(tuple(emitted), history=begun.history, read=begun.read)
    steps = steps_of(second, context, prompt, params, resumption)
    context.close()
    assert emitted + ids_in(steps) == whole
    assert started(steps).history == begun.history


def test_repeated_steps_are_replays_of_graphs(first: Engine) -> None:
    whole = ids_in(alone(first, PROMPTS[1], SAMPLING["sampled"]))
    steps = alone(first, PROMPTS[1], SAMPLING["sampled"], Resumption(tuple(whole[:40])))
    assert [step for step in steps if isinstance(step, Replayed)] == [Replayed(None)] * 40
    assert all(step.eager is None for step in steps if isinstance(step, Token))


def test_a_cache_goes_to_the_host_and_back_bit_for_bit(first: Engine) -> None:
    context = first.open_context()
    steps_of(first, context, PROMPTS[2], SAMPLING["sampled"])
    before = bits(first, context.slot, len(context.ids))
    saved = first.save(context)
    assert all(part.is_pinned() for part in saved.parts)
    context.close()
    others = [first.open_context() for _ in range(2)]
    for other in others:
        steps_of(first, other, PROMPTS[1], SAMPLING["greedy"])
    others[1].close()
    back = first.restore(saved)
    assert same(bits(first, back.slot, len(back.ids)), before)
    again = steps_of(first, back, [*PROMPTS[2], 9, 10], SAMPLING["sampled"])
    assert isinstance(again[0], Prefilled)
    assert again[0].cached == len(PROMPTS[2])
    back.close()
    others[0].close()


def test_every_graph_is_checked_at_start_and_has_its_turn_later(folder: Path) -> None:
    heard: list[EngineEvent] = []
    engine = opened(folder, heard)
    steps = [shape.name for shape in engine._stepper.captured_steps]
    checked = [event for event in heard if isinstance(event, SelfChecked)]
    assert [event.graph for event in checked] == steps
    assert all(event.sound for event in checked)
    assert engine.self_check()
    assert heard[-1] == SelfChecked(steps[0], True, heard[-1].seconds)  # type: ignore[union-attr]
    engine.close()
