"""Speeds are those of RESULTS.md, and others follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench.shapes import SHAPES, weight_bytes
from service.cli.cost.prices import read_prices
from service.cli.cost.speed import (
    CPU_TOKENS_PER_S,
    MEASURED,
    MEASURED_GPU,
    cpu_speed,
    fits,
    gpu_speed,
    share_for,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "RESULTS.md"


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_called_measured_stands_in_the_results(name: str) -> None:
    assert MEASURED[name].bytes_per_token == weight_bytes(SHAPES[name], 2)
    row = next(line for line in RESULTS.read_text().splitlines() if line.lower().startswith(f"| {name}"))
    assert row.split("|")[2].strip() == str(MEASURED[name].tokens_per_s)


def test_the_cpu_s_figures_stand_in_the_results() -> None:
    text = RESULTS.read_text()
    assert f"| 20.8 | {CPU_TOKENS_PER_S} | |" in text
    assert "0.152 decode steps" in text
    assert cpu_speed().prompt > cpu_speed().answer


@pytest.mark.parametrize("name", MEASURED)
def test_the_measured_gpu_gets_what_was_measured(name: str) -> None:
    model = MEASURED[name]
    assert gpu_speed(MEASURED_GPU, model.bytes_per_token).answer == pytest.approx(model.tokens_per_s)


def test_shares_grow_with_the_model_and_stay_among_the_measured_ones() -> None:
    shares = [share_for(size) for size in (1e7, 3e8, 1e9, 2.5e9, 5e9, 1.3e10, 3e10)]
    assert shares[:-1] == sorted(shares[:-1])  # 7B and 8B reach the same, to a thousandth
    assert shares[0] == MEASURED["smollm2-135m"].share
    assert shares[-1] == MEASURED["llama-3.1-8b"].share < 0.9


def test_a_gpu_with_half_the_bandwidth_is_half_as_fast() -> None:
    gpus = {instance.gpu.name: instance.gpu for instance in read_prices().instances.values()}
    bytes_per_token = MEASURED["llama-3.1-8b"].bytes_per_token
    a10g, l4 = gpu_speed(gpus["A10G"], bytes_per_token), gpu_speed(gpus["L4"], bytes_per_token)
    assert a10g.answer == pytest.approx(2 * l4.answer)
    assert l4.prompt > a10g.prompt  # which is a matter of arithmetic
    assert not fits(gpus["A10G"], 141e9)


def test_a_short_prompt_still_reads_the_weights_once() -> None:
    speed = gpu_speed(MEASURED_GPU, MEASURED["llama-3.1-8b"].bytes_per_token)
    assert speed.busy_s(1, 100) == pytest.approx(101 / speed.answer)
    assert speed.busy_s(0, 100) == pytest.approx(100 / speed.answer)
    assert speed.busy_s(2048, 0) == pytest.approx(0.0585)
