"""Every fused kernel against its plain twin, in odd sizes, into poisoned buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from _pytest.mark import ParameterSet

from engine.kernels.fused import FusedOps
from engine.kernels.ops import LayerCache, Linear
from engine.kernels.plain import PlainOps
from engine.kernels.tuning import AttendSetting, Kernel, RowSetting
from tests.engine.kernels.decoders import Scene, poisoned, scene, shaped

ROWS = (1, 2, 8)


def long(*values: object) -> ParameterSet:
    """Values of a parameter for which the interpreter takes long: the full form of these tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of float32 sums; NaN, where nothing may be written, equals NaN."""
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)


def linear(n: int, k: int, device: torch.device, *, bias: bool, seed: int = 0) -> Linear:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator) / k**0.5
    return Linear(weight.to(device), torch.randn(n, generator=generator).to(device) if bias else None)


def stream(rows: int, width: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    return (3.0 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))).to(device)


def ops_of(width: int, device: torch.device, *, apart: bool = False) -> tuple[FusedOps, PlainOps]:
    fused = FusedOps(shaped(width=width), torch.float32, device)
    if apart:
        tuning = replace(fused.tuning, norm_apart=frozenset({width}))
        fused = FusedOps(shaped(width=width), torch.float32, device, tuning)
    return fused, PlainOps(device)


@pytest.mark.parametrize(
    ("n", "k", "bias", "apart"),
    [
        (37, 72, True, False),
        (5, 1100, False, True),
        long(1, 16, True, True),
        long(37, 72, False, True),
        long(5, 1100, True, False),
    ],
)
def test_norm_linear_equals_its_twin(n: int, k: int, bias: bool, apart: bool, device: torch.device) -> None:
    fused, plain = ops_of(k, device, apart=apart)
    for rows in ROWS:
        x, matrix = stream(rows, k, device), linear(n, k, device, bias=bias)
        out, expected = poisoned(rows, n, device=device), poisoned(rows, n, device=device)
        fused.norm_linear(x, matrix, 1e-5, out)
        plain.norm_linear(x, matrix, 1e-5, expected)
        close(out, expected)


@pytest.mark.parametrize(
    ("n", "k", "bias"), [(37, 100, True), (9, 3000, False), long(1, 16, True), long(9, 3000, True)]
)
def test_linear_residual_equals_its_twin(n: int, k: int, bias: bool, device: torch.device) -> None:
    fused, plain = ops_of(n, device)
    for rows in ROWS:
        x, matrix = stream(rows, k, device), linear(n, k, device, bias=bias)
        residual = stream(rows, n, device, seed=2)
        expected = residual.clone()
        fused.linear_residual(x, matrix, residual)
        plain.linear_residual(x, matrix, expected)
        close(residual, expected)


@pytest.mark.parametrize(
    ("f", "k", "apart"), [(37, 72, False), long(1, 16, True), long(6, 1100, False), long(6, 1100, True)]
)
def test_norm_gate_up_equals_its_twin(f: int, k: int, apart: bool, device: torch.device) -> None:
    fused, plain = ops_of(k, device, apart=apart)
    for rows in ROWS:
        x, matrix = stream(rows, k, device), linear(2 * f, k, device, bias=False)
        out, expected = poisoned(rows, f, device=device), poisoned(rows, f, device=device)
        fused.norm_gate_up(x, matrix, 1e-5, out)
        plain.norm_gate_up(x, matrix, 1e-5, expected)
        close(out, expected)


@pytest.mark.parametrize("tied", [False, long(True)])
def test_head_equals_its_twin(tied: bool, device: torch.device) -> None:
    s = scene(shaped(tied_head=tied), 3, device)
    for rows in ROWS:
        x = stream(rows, 72, device)
        out, expected = poisoned(rows, 131, device=device), poisoned(rows, 131, device=device)
        s.fused.head(x, s.weights, 1e-5, out)
        s.plain.head(x, s.weights, 1e-5, expected)
        close(out, expected)


@pytest.mark.parametrize("buffers", [3, long(1)])
def test_a_grid_that_stays_computes_the_same_bits(buffers: int, device: torch.device) -> None:
    k, n, rows = 72, 37, 2
    fused, _ = ops_of(k, device)
    stays = RowSetting(rows=2, warps=1, resident=1, buffers=buffers)
    once = RowSetting(rows=2, warps=1)
    keys: list[tuple[Kernel, int, int]] = [("qkv", n, k), ("gate_up", 2 * n, k), ("out", k, k), ("head", 131, k)]
    results = []
    for setting in (stays, once):
        ops = FusedOps(shaped(width=k), torch.float32, device, replace(fused.tuning, rows=dict.fromkeys(keys, setting)))
        x = stream(rows, k, device)
        out, gated = poisoned(rows, n, device=device), poisoned(rows, n, device=device)
        logits = poisoned(rows, 131, device=device)
        ops.norm_linear(x, linear(n, k, device, bias=True), 1e-5, out)
        ops.norm_gate_up(x, linear(2 * n, k, device, bias=False), 1e-5, gated)
        ops.linear_residual(x.clone(), linear(k, k, device, bias=False), x)
        ops.head(x, scene(shaped(), 3, device).weights, 1e-5, logits)
        results.append((out, gated, x, logits))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def attended(s: Scene, rows: int, bucket: int, seed: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """What the fused kernel and its twin make of the same scene; both caches must agree after it."""
    a, device = s.architecture, s.table.active.device
    qkv = stream(rows, a.qkv_rows, device, seed=seed)
    held = s.copy_of_cache()
    out, expected = (poisoned(rows, a.heads * a.head_dim, device=device) for _ in range(2))
    s.fused.attend(qkv, s.weights.layers[0], s.weights, s.cache[0], s.table, bucket, 1e-5, out)
    s.plain.attend(qkv, s.weights.layers[0], s.weights, held[0], s.table, bucket, 1e-5, expected)
    assert not expected.isnan().any()
    close(s.cache[0].k, held[0].k)
    close(s.cache[0].v, held[0].v)
    return out, expected


HEADS = [(1, 1, 16), long(7, 1, 32), (2, 2, 80), (6, 2, 128), long(9, 3, 64), long(4, 2, 96), long(40, 8, 16)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("qk_norm", [True, long(False)])
def test_attend_equals_its_twin(heads: int, kv_heads: int, head_dim: int, qk_norm: bool, device: torch.device) -> None:
    a = shaped(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qk_norm=qk_norm)
    for position, rows in ((0, 1), (37, 1), (56, 8) if heads < 9 else (61, 2)):
        out, expected = attended(scene(a, position, device), rows, 64)
        close(out, expected)


@pytest.mark.parametrize("position", [0, 31, *map(long, (30, 32, 33, 63, 64, 130, 300, 639))])
def test_attend_splits_long_contexts(position: int, device: torch.device) -> None:
    a = shaped(heads=6, kv_heads=2, context=640)
    for rows in (1, 4):
        if position + rows > a.context:
            continue
        s = split_scene(scene(a, position, device))
        for _ in range(2):  # the counters must be as before
            out, expected = attended(s, rows, 640)
            close(out, expected)


def split_scene(s: Scene) -> Scene:
    """The scene with settings that split early: tiles of 16, alone up to 32, at most 8 splits."""
    a = s.architecture
    setting = AttendSetting(tile=16, warps=1, single=32, split_tile=16, splits=8)
    tuning = replace(s.fused.tuning, attend={(a.heads, a.kv_heads, a.head_dim): setting})
    return replace(s, fused=FusedOps(a, torch.float32, s.table.active.device, tuning))


@pytest.mark.parametrize("position", [29, long(0), long(100)])
def test_a_row_has_the_bits_it_has_alone(position: int, device: torch.device) -> None:
    a = shaped(heads=6, kv_heads=2, context=640, qk_norm=True)
    together = split_scene(scene(a, position, device))
    alone = replace(together, cache=together.copy_of_cache())
    qkv = stream(8, a.qkv_rows, device)
    out = poisoned(8, a.heads * a.head_dim, device=device)
    layer = together.weights.layers[0]
    together.fused.attend(qkv, layer, together.weights, together.cache[0], together.table, 640, 1e-5, out)
    one = poisoned(1, a.heads * a.head_dim, device=device)
    for row in range(8):
        bucket = 320 if row % 2 else 640
        alone.fused.attend(qkv[row : row + 1], layer, alone.weights, alone.cache[0], alone.table, bucket, 1e-5, one)
        assert torch.equal(one[0], out[row]), row
        alone.table.position[1] += 1
    assert torch.equal(alone.cache[0].k.nan_to_num(9.0), together.cache[0].k.nan_to_num(9.0))


@pytest.mark.parametrize("rows", [2, long(8)])
def test_rows_of_products_have_the_bits_they_have_alone(rows: int, device: torch.device) -> None:
    k, n = 300, 24
    fused, _ = ops_of(k, device)
    x, matrix = stream(rows, k, device), linear(n, k, device, bias=True)
    out, gated = poisoned(rows, n, device=device), poisoned(rows, n // 2, device=device)
    fused.norm_linear(x, matrix, 1e-5, out)
    fused.norm_gate_up(x, matrix, 1e-5, gated)
    residual = stream(rows, n, device, seed=5)
    before = residual.clone()
    ops_of(n, device)[0].linear_residual(x, matrix, residual)
    for row in range(rows):
        one = x[row : row + 1].clone()
        alone, alone_gated = poisoned(1, n, device=device), poisoned(1, n // 2, device=device)
        fused.adopt(one)
        fused.norm_linear(one, matrix, 1e-5, alone)
        fused.norm_gate_up(one, matrix, 1e-5, alone_gated)
        alone_residual = before[row : row + 1].clone()
        ops_of(n, device)[0].linear_residual(one, matrix, alone_residual)
        assert torch.equal(alone[0], out[row])
        assert torch.equal(alone_gated[0], gated[row])
        assert torch.equal(alone_residual[0], residual[row])


def play_greedily(s: Scene, x: torch.Tensor, stop_ids: torch.Tensor) -> tuple[int, torch.Tensor]:
    device = x.device
    logits, picked = poisoned(1, s.architecture.vocabulary, device=device), torch.zeros(1, dtype=torch.int64).to(device)
    s.fused.greedy_head_and_pick(x, s.weights, 1e-5, logits, s.table, stop_ids, picked)
    return int(picked), logits


def test_pick_takes_the_argmax_and_moves_the_slot_on(device: torch.device) -> None:
    s = scene(shaped(), 3, device)
    stop_ids = torch.full((3, 33), -1, device=device)
    for seed in range(3 if device.type == "cuda" else 2):
        x = stream(1, 72, device, seed=seed)
        picked, logits = play_greedily(s, x, stop_ids)
        assert picked == int(logits.argmax())
        assert s.table.token.tolist() == [0, picked, 0]
        assert s.table.position.tolist() == [5, 4 + seed, 3]
        assert not s.table.stopped.any()
        assert torch.equal(x[0], s.weights.embedding[picked])


def test_pick_takes_the_lowest_of_equals(device: torch.device) -> None:
    s = scene(shaped(), 3, device)
    head = torch.zeros_like(s.weights.head)
    s = replace(s, weights=replace(s.weights, head=head))
    stop_ids = torch.full((3, 1), -1, device=device)
    assert play_greedily(s, stream(1, 72, device), stop_ids)[0] == 0
    s.weights.head[77] = 1.0
    s.weights.head[112] = 1.0
    assert play_greedily(s, stream(1, 72, device).abs(), stop_ids)[0] == 77
    s.weights.head.fill_(-1.0)
    s.weights.head[120:] = -0.5
    assert play_greedily(s, stream(1, 72, device).abs(), stop_ids)[0] == 120


def test_a_stopped_slot_stays(device: torch.device) -> None:
    s = scene(shaped(), 3, device)
    x = stream(1, 72, device)
    expected, _ = play_greedily(s, x.clone(), torch.full((3, 4), -1, device=device))
    s.table.position[1] = 3
    stop_ids = torch.tensor([[expected, -1, -1], [5, expected, -1], [-1, -1, -1]], device=device)
    picked, _ = play_greedily(s, x, stop_ids)
    assert picked == expected
    assert s.table.stopped.tolist() == [False, True, False]
    assert s.table.position.tolist() == [5, 4, 3]
    for _ in range(2):
        play_greedily(s, x, stop_ids)
        assert s.table.token[1] == expected
        assert s.table.position[1] == 4
        assert torch.equal(x[0], s.weights.embedding[expected])


def test_embed_takes_the_active_slots_token(device: torch.device) -> None:
    s = scene(shaped(), 3, device)
    x = poisoned(1, 72, device=device)
    s.fused.embed(s.weights.embedding, s.table, x)
    assert torch.equal(x[0], s.weights.embedding[7])


def whole_step(ops: FusedOps | PlainOps, s: Scene, cache: tuple[LayerCache, ...], x: torch.Tensor) -> torch.Tensor:
    a, rows, device = s.architecture, x.shape[0], x.device
    dtype = s.weights.head.dtype
    qkv = poisoned(rows, a.qkv_rows, device=device, dtype=dtype)
    mixed = poisoned(rows, a.heads * a.head_dim, device=device, dtype=dtype)
    hidden = poisoned(rows, a.ffn_width, device=device, dtype=dtype)
    logits = poisoned(rows, a.vocabulary, device=device)
    for layer, held in zip(s.weights.layers, cache, strict=True):
        ops.norm_linear(x, layer.qkv, a.norm_eps, qkv)
        ops.attend(qkv, layer, s.weights, held, s.table, a.context, a.norm_eps, mixed)
        ops.linear_residual(mixed, layer.out, x)
        ops.norm_gate_up(x, layer.gate_up, a.norm_eps, hidden)
        ops.linear_residual(hidden, layer.down, x)
    ops.head(x, s.weights, a.norm_eps, logits)
    return logits


@pytest.mark.parametrize(("family", "rows"), [("qwen3", 2), long("llama", 1), long("qwen2", 1)])
def test_a_whole_step_equals_its_twin(family: str, rows: int, device: torch.device) -> None:
    a = shaped(layers=2, qkv_bias=family == "qwen2", qk_norm=family == "qwen3", tied_head=family != "qwen2")
    s = scene(a, 20, device)
    x = stream(rows, a.width, device)
    s.fused.adopt(x)
    expected = whole_step(s.plain, s, s.copy_of_cache(), x.clone())
    torch.testing.assert_close(whole_step(s.fused, s, s.cache, x), expected, rtol=1e-4, atol=1e-4)
