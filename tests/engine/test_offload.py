"""Contexts that went to host memory and came back answer as those that stayed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import StepError
from engine.outputs import Prefilled, Token
from tests.checkpoints import Sizes, write_tiny_folder

PROMPT = [9 + (7 * i) % 200 for i in range(60)]
PARAMS = SamplingParams(max_tokens=20, temperature=1.0, seed=5, logit_bias=dict.fromkeys(range(8), -100.0))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(context=256))
    opened = Engine.open(EngineConfig(model=str(folder), device="cpu", slots=2, prefill_chunk=16))
    yield opened
    opened.close()


def test_what_comes_back_is_what_went_and_the_conversation_goes_on(engine: Engine) -> None:
    kept, moved = engine.open_context(), engine.open_context()
    for context in (kept, moved):
        list(engine.generate(context, PROMPT, PARAMS))
    saved = engine.save(moved)
    assert saved.tokens == kept.tokens
    assert saved.bytes == len(saved.tokens) * 2 * 2 * 2 * 16 * 4  # layers, k and v, heads, head_dim, float32
    moved.close()
    other = engine.open_context()
    list(engine.generate(other, PROMPT[::-1], PARAMS))  # somebody else writes into the slot
    other.close()
    list(engine.generate(kept, [5, 6, 7], PARAMS))
    kept.close()

    back = engine.restore(saved)
    assert back.segments == list(saved.segments)
    again = [*PROMPT, 30, 31]
    steps = list(engine.generate(back, again, PARAMS))
    assert isinstance(steps[0], Prefilled)
    assert steps[0].cached == len(PROMPT)
    back.close()
    alone = engine.open_context()
    list(engine.generate(alone, PROMPT, PARAMS))
    expected = list(engine.generate(alone, again, PARAMS))
    alone.close()
    assert [s for s in steps if isinstance(s, Token)] == [s for s in expected if isinstance(s, Token)]


def test_an_empty_context_comes_back_empty(engine: Engine) -> None:
    context = engine.open_context()
    saved = engine.save(context)
    context.close()
    back = engine.restore(saved)
    assert (saved.bytes, back.tokens) == (0, ())
    back.close()


def test_what_plays_or_is_closed_cannot_be_saved_and_a_full_cache_takes_nothing_back(engine: Engine) -> None:
    context = engine.open_context()
    turn = engine.generate(context, PROMPT, PARAMS)
    next(turn)
    with pytest.raises(StepError, match="in use"):
        engine.save(context)
    turn.close()
    saved = engine.save(context)
    other = engine.open_context()
    with pytest.raises(StepError, match="every KV slot is taken"):
        engine.restore(saved)
    other.close()
    context.close()
    with pytest.raises(StepError, match="closed"):
        engine.save(context)
