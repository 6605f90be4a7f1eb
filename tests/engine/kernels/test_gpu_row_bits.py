"""On a CUDA device: a row of a step of several has the bits of a step of its own, over 1,000 random states a shape."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.benchmarks.decode_step import LONG, Bench
from tests.benchmarks.shapes import SHAPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STATES = 1000
WIDTHS = (2, 4, 8)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_have_the_bits_they_have_alone(name: str) -> None:
    device = torch.device("cuda")
    shape = replace(SHAPES[name], layers=2, vocabulary=8216)
    bench = Bench(shape, device)
    script = random.Random(name)
    for state in range(STATES):
        rows = WIDTHS[state % len(WIDTHS)]
        position = script.randrange(LONG - rows) if state % 2 else script.randrange(300)
        slot = int(bench.table.active)
        x = torch.randn(rows, shape.width, device=device)
        places = slice(position, position + rows)
        for cache in bench.cache:  # what an earlier state left there must not matter
            cache.k[slot, :, places] = float("nan")
            cache.v[slot, :, places] = float("nan")
        bench.set_rows(rows)
        bench.table.position.fill_(position)
        bench.x.copy_(x)
        bench.layers(bench.ops, LONG)
        bench.ops.head(bench.x, bench.weights, shape.norm_eps, bench.logits)
        together = bench.logits.clone()
        made = [(cache.k[slot, :, places].clone(), cache.v[slot, :, places].clone()) for cache in bench.cache]
        for cache in bench.cache:
            cache.k[slot, :, places] = float("nan")
            cache.v[slot, :, places] = float("nan")
        bench.set_rows(1)
        for row in range(rows):
            bench.table.position.fill_(position + row)
            bench.x.copy_(x[row : row + 1])
            bench.ops.adopt(bench.x)
            bench.layers(bench.ops, LONG)
            bench.ops.head(bench.x, bench.weights, shape.norm_eps, bench.logits)
            assert torch.equal(bench.logits[0], together[row]), f"row {row} of {rows} at {position}"
        for cache, (k, v) in zip(bench.cache, made, strict=True):
            assert torch.equal(cache.k[slot, :, places], k)
            assert torch.equal(cache.v[slot, :, places], v)
        for cache in bench.cache:  # leave finite values for the states that follow
            cache.k[slot, :, places].nan_to_num_()
            cache.v[slot, :, places].nan_to_num_()
