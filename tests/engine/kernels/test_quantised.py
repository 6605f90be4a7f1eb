"""Compiled steps: products against the dequantised matrix in float64, whole steps against the plain twin."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.checkpoint.blocks import DEQUANTISERS
from engine.errors import DeviceError
from engine.kernels.native import cache_folder, use_cache
from engine.kernels.packed import BLOCK_BYTES
from engine.outputs import Token
from tests.checkpoints import Sizes
from tests.gguf_checkpoints import write_tiny_gguf

SIZES = Sizes(layers=3, width=96, heads=6, kv_heads=2, head_dim=16, ffn_width=160, context=512)
WIDE_HEADS = Sizes(layers=2, width=64, heads=4, kv_heads=1, head_dim=80, ffn_width=96, context=256)
PROMPT = [9 + (7 * i) % 200 for i in range(70)]


def random_blocks(kind: str, rows: int, columns: int) -> torch.Tensor:
    """Rows of random blocks with scales of ordinary size, negative ones and zeros among them."""
    chooser = np.random.default_rng(rows * columns)
    raw = chooser.integers(0, 256, (rows, columns // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    halves = 2 if kind == "Q4_1" else 1
    scales = chooser.normal(size=(rows, columns // 32, halves)).astype(np.float16)
    scales[0, 0] = 0
    scales[-1, -1] = 6e-8  # the smallest that a half float holds
    raw[:, :, : 2 * halves] = scales.view(np.uint8).reshape(rows, columns // 32, 2 * halves)
    return torch.from_numpy(raw.reshape(rows, -1))


@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (3, 64), (4, 96), (7, 576), (130, 1536)])
def test_products_equal_those_of_the_dequantised_matrix(kind: str, rows: int, columns: int) -> None:
    use_cache()
    from numba import njit

    from engine.kernels.quantised import KINDS, multiply

    raw = random_blocks(kind, rows, columns)
    matrix = DEQUANTISERS[kind](raw.view(-1, BLOCK_BYTES[kind])).view(rows, columns).double().numpy()
    x = np.random.default_rng(1).normal(size=columns).astype(np.float32)
    sums = x.reshape(-1, 32).sum(axis=1)
    y = np.zeros(rows, dtype=np.float32)

    @njit
    def call(kind, at, row_bytes, blocks, rows, x, sums, y):  # type: ignore[no-untyped-def]
        multiply(kind, at, row_bytes, blocks, rows, x, sums, y)

    facts = KINDS[kind], raw.data_ptr(), raw.shape[1], columns // 32, rows
    call(*facts, x.ctypes.data, sums.ctypes.data, y.ctypes.data)
    bound = np.abs(matrix) @ np.abs(x.astype(np.float64)) + np.abs(matrix).max()
    assert np.all(np.abs(y - matrix @ x.astype(np.float64)) <= 1e-6 * bound)


def answer(path: Path, params: SamplingParams, **options: object) -> tuple[list[int], torch.Tensor, str]:
    """Ids, the last step's logits, and the kernels that ran."""
    config = EngineConfig(model=str(path), device="cpu", slots=2, prefill_chunk=32, **options)  # type: ignore[arg-type]
    engine = Engine.open(config)
    other, context = engine.open_context(), engine.open_context()
    steps = engine.generate(context, PROMPT, params)
    ids = [step.token_id for step in steps if isinstance(step, Token)]
    logits = engine._decoder.buffers.logits[-1].clone()
    name = engine._decoder.toolkit_name
    other.close()
    context.close()
    engine.close()
    return ids, logits, name


@pytest.mark.parametrize("quantisation", BLOCK_BYTES)
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", False)])
def test_answers_and_logits_are_the_plain_twins(tmp_path: Path, family: str, tied: bool, quantisation: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", family, sizes=SIZES, tied=tied, quantisation=quantisation)
    params = SamplingParams(max_tokens=100, logit_bias=dict.fromkeys(range(8), -100.0))
    plain = answer(path, params, kernels="plain")
    ours = answer(path, params, threads=3)
    assert (plain[2], ours[2]) == ("plain", "quantised")
    assert ours[0] == plain[0]
    assert torch.allclose(ours[1], plain[1], rtol=1e-4, atol=1e-4)


def test_heads_may_have_any_multiple_of_sixteen(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", "qwen3", sizes=WIDE_HEADS, quantisation="Q8_0")
    params = SamplingParams(max_tokens=40, logit_bias=dict.fromkeys(range(8), -100.0))
    plain, ours = answer(path, params, kernels="plain"), answer(path, params)
    assert ours[2] == "quantised"
    assert ours[0] == plain[0]
    assert torch.allclose(ours[1], plain[1], rtol=1e-4, atol=1e-4)


def test_bits_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", sizes=SIZES, quantisation="Q4_1")
    params = SamplingParams(max_tokens=60, temperature=0.9, seed=7, logit_bias=dict.fromkeys(range(8), -100.0))
    one, five = answer(path, params, threads=1), answer(path, params, threads=5)
    torch.set_num_threads(2)
    assert one[0] == five[0]
    assert one[0] == answer(path, params, threads=5)[0]
    # Prefill is torch's, whose sums are split by threads.
    assert torch.allclose(one[1], five[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantisation", ["F16", "Q5_0"])
def test_other_types_are_played_plain_and_refused_where_quantised_is_asked_for(
    tmp_path: Path, quantisation: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", quantisation=quantisation)
    assert answer(path, SamplingParams(max_tokens=2), precision="float32")[2] == "plain"
    with pytest.raises(DeviceError, match="Q4_0, Q4_1 or Q8_0"):
        Engine.open(EngineConfig(model=str(path), device="cpu", kernels="quantised"))


def test_helpers_go_when_the_engine_is_closed(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", quantisation="Q4_0")
    engine = Engine.open(EngineConfig(model=str(path), device="cpu", threads=4))
    helpers = [thread for thread in threading.enumerate() if thread.name.startswith("decode-")]
    assert len(helpers) == 3
    engine.close()
    for helper in helpers:
        helper.join(timeout=20)
        assert not helper.is_alive()


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = cache_folder(tmp_path)
    assert folder is not None
    assert folder.is_dir()
    folder.parent.chmod(0o777)
    assert cache_folder(tmp_path) is None
    folder.parent.chmod(0o700)
    assert cache_folder(tmp_path) == folder
    assert cache_folder(tmp_path / "nowhere") is None
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "real").mkdir(mode=0o700)
    elsewhere.mkdir()
    (elsewhere / f"soloist-{os.getuid()}").symlink_to(tmp_path / "real")
    assert cache_folder(elsewhere) is None
