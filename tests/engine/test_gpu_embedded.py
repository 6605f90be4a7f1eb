"""The embedded model on a CUDA device: fused kernels in bfloat16 are no worse than plain torch in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.config import Kernels, Precision
from engine.outputs import Token
from tests.engine.test_embedded_reference import PROMPTS, Message

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("embedded_model"),
]
TOKENS = 64


class Player:
    """One engine, and the logits of each step of a text that is forced on it."""

    def __init__(self, kernels: Kernels, precision: Precision) -> None:
        self.engine = Engine.open(
            EngineConfig(
                device="cuda", context=1024, slots=1, kernels=kernels, precision=precision, graph_stages=("greedy",)
            )
        )

    def answer(self, prompt: str) -> tuple[list[int], list[int]]:
        ids = self.engine.text.prompt_ids([Message(prompt)])
        context = self.engine.open_context()
        steps = list(self.engine.generate(context, ids, SamplingParams(max_tokens=TOKENS)))
        context.close()
        return ids, [step.token_id for step in steps if isinstance(step, Token)]

    def logits_of(self, ids: list[int]) -> torch.Tensor:
        """`[len(ids), vocabulary]` float32: after each id, decoded one at a time."""
        stepper, buffers = self.engine._stepper, self.engine._decoder.buffers
        rows = []
        with torch.inference_mode():
            buffers.sampler.write(0, SamplingParams(), ids, [])
            for position, token_id in enumerate(ids):
                stepper.begin(0, token_id, position)
                stepper.play(0, position, SamplingParams())
                rows.append(buffers.logits[-1].clone())
        return torch.stack(rows)


@pytest.fixture(scope="module")
def players() -> Iterator[dict[str, Player]]:
    made = {
        "float32": Player("plain", "float32"),
        "plain bfloat16": Player("plain", "bfloat16"),
        "fused bfloat16": Player("fused", "bfloat16"),
    }
    yield made
    for player in made.values():
        player.engine.close()


def test_fused_logits_are_no_worse_than_plain_ones(players: dict[str, Player]) -> None:
    errors: dict[str, list[float]] = {"plain bfloat16": [], "fused bfloat16": []}
    for prompt in PROMPTS[:8]:
        ids, answer = players["float32"].answer(prompt)
        text = ids + answer[:-1]
        expected = players["float32"].logits_of(text).double()
        for name, norms in errors.items():
            got = players[name].logits_of(text).double()
            norms.append(float((got - expected).norm() / expected.norm()))
    plain, fused = (sum(norms) / len(norms) for norms in errors.values())
    print(f"error norms against float32: plain bfloat16 {plain:.3e}, fused bfloat16 {fused:.3e}")
    assert fused <= plain * 1.05


def test_greedy_ids_differ_only_where_float32_is_undecided(players: dict[str, Player]) -> None:
    differing, compared = [], 0
    for prompt in PROMPTS:
        ids, plain = players["plain bfloat16"].answer(prompt)
        _, fused = players["fused bfloat16"].answer(prompt)
        compared += 1
        if fused == plain:
            continue
        at = next(i for i, (a, b) in enumerate(zip(plain, fused, strict=False)) if a != b)
        logits = players["float32"].logits_of(ids + plain[:at])[-1]
        noise = float((players["plain bfloat16"].logits_of(ids + plain[:at])[-1] - logits).abs().max())
        margin = abs(float(logits[plain[at]] - logits[fused[at]]))
        differing.append((prompt, at, margin, noise))
        assert margin <= 2 * noise, f"{prompt!r} differs at token {at} with a float32 margin of {margin:.3f}"
    print(f"{len(differing)} of {compared} answers differ; (prompt, token, float32 margin, bfloat16 noise):")
    for row in differing:
        print(f"  {row[0]!r}, {row[1]}, {row[2]:.4f}, {row[3]:.4f}")
