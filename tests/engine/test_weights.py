"""Loading: fused, folded, complete, and equal to what `transformers` loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.checkpoint import StoredTensor, open_checkpoint
from engine.checkpoint.folder import FolderCheckpoint
from engine.checkpoint.gguf import open_gguf
from engine.errors import CheckpointError
from engine.events import EngineEvent, Progress
from engine.kernels.ops import DecoderWeights
from engine.weights import expected_bytes, load_weights, random_weights
from tests.checkpoints import LLAMA3_ROPE, Sizes, tiny_architecture, write_tiny_folder
from tests.gguf_checkpoints import write_tiny_gguf

CPU = torch.device("cpu")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def all_tensors(weights: DecoderWeights) -> Iterator[torch.Tensor]:
    for value in (weights.embedding, weights.head, weights.final_norm, weights.rope_cos, weights.rope_sin):
        if value is not None:
            yield value
    for layer in weights.layers:
        for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
            yield from (tensor for tensor in (linear.weight, linear.bias) if tensor is not None)
        yield from (norm for norm in (layer.q_norm, layer.k_norm) if norm is not None)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_the_oracles_with_the_norms_folded_in(tmp_path: Path, family: str, tied: bool) -> None:
    folder = write_tiny_folder(tmp_path, family, tied=tied, shards=2)
    weights = load_weights(open_checkpoint(str(folder)), CPU, torch.float32, 128)
    # transformers types the pair it returns here as the model alone.
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state: dict[str, torch.Tensor] = model.state_dict()
    assert torch.equal(weights.embedding, state["model.embed_tokens.weight"])
    if tied:
        assert weights.head is weights.embedding
        assert weights.final_norm is not None
        assert torch.equal(weights.final_norm, state["model.norm.weight"])
    else:
        assert weights.final_norm is None
        assert torch.equal(weights.head, state["lm_head.weight"] * state["model.norm.weight"])
    for index, layer in enumerate(weights.layers):

        def stored(name: str, prefix: str = f"model.layers.{index}.") -> torch.Tensor:
            return state[prefix + name]

        qkv = torch.cat([stored(f"self_attn.{name}_proj.weight") for name in "qkv"])
        assert torch.equal(layer.qkv.weight, qkv * stored("input_layernorm.weight"))
        gate_up = torch.cat([stored(f"mlp.{name}_proj.weight") for name in ("gate", "up")])
        assert torch.equal(layer.gate_up.weight, gate_up * stored("post_attention_layernorm.weight"))
        assert torch.equal(layer.out.weight, stored("self_attn.o_proj.weight"))
        assert torch.equal(layer.down.weight, stored("mlp.down_proj.weight"))
        assert (layer.qkv.bias is not None) == (family == "qwen2")
        if layer.qkv.bias is not None:
            assert torch.equal(layer.qkv.bias, torch.cat([stored(f"self_attn.{name}_proj.bias") for name in "qkv"]))
        assert (layer.q_norm is not None) == (layer.k_norm is not None) == (family == "qwen3")
        if layer.q_norm is not None and layer.k_norm is not None:
            assert torch.equal(layer.q_norm, stored("self_attn.q_norm.weight"))
            assert torch.equal(layer.k_norm, stored("self_attn.k_norm.weight"))
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(128)[None])
    assert torch.equal(weights.rope_cos, cos[0, :, :8])
    assert torch.equal(weights.rope_sin, sin[0, :, :8])


def test_a_gguf_and_a_folder_of_one_model_give_the_same_bits(tmp_path: Path) -> None:
    file = load_weights(open_gguf(write_tiny_gguf(tmp_path / "m.gguf")), CPU, torch.float32, 64)
    folder = load_weights(open_checkpoint(str(write_tiny_folder(tmp_path / "m"))), CPU, torch.float32, 64)
    assert all(torch.equal(a, b) for a, b in zip(all_tensors(file), all_tensors(folder), strict=True))


def test_folding_rounds_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_tiny_folder(tmp_path)))
    half = load_weights(checkpoint, CPU, torch.bfloat16, 64)
    full = load_weights(checkpoint, CPU, torch.float32, 64)
    assert torch.equal(half.layers[0].qkv.weight, full.layers[0].qkv.weight.bfloat16())
    assert torch.equal(half.layers[1].gate_up.weight, full.layers[1].gate_up.weight.bfloat16())
    assert half.rope_cos.dtype == torch.float32


def test_large_matrices_are_copied_in_chunks_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(str(write_tiny_folder(tmp_path, "qwen2", tied=False)))
    whole = load_weights(checkpoint, CPU, torch.float32, 64)
    monkeypatch.setattr("engine.weights._CHUNK_BYTES", 7 * 64 * 4)
    chunked = load_weights(checkpoint, CPU, torch.float32, 64)
    assert all(torch.equal(a, b) for a, b in zip(all_tensors(whole), all_tensors(chunked), strict=True))


@pytest.mark.parametrize("form", ["gguf", "folder"])
def test_progress_reaches_the_total_in_bytes(tmp_path: Path, form: str) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf") if form == "gguf" else write_tiny_folder(tmp_path / "m", shards=2)
    checkpoint = open_checkpoint(str(model))
    events: list[EngineEvent] = []
    load_weights(checkpoint, CPU, torch.float32, 64, events.append)
    progress = [event for event in events if isinstance(event, Progress)]
    assert len(progress) == len(events) == len(list(checkpoint.tensors()))
    assert {(event.phase, event.total, event.unit) for event in progress} == {("load", checkpoint.total_bytes, "bytes")}
    done = [event.done for event in progress]
    assert done == sorted(done)
    assert done[-1] == checkpoint.total_bytes


@dataclasses.dataclass(frozen=True)
class Edited:
    """A checkpoint whose tensors are changed on the way, as by a file that changed after it was opened."""

    inner: FolderCheckpoint
    stored: tuple[StoredTensor, ...]

    def tensors(self) -> Iterator[StoredTensor]:
        return iter(self.stored)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("missing", "model.layers.1.mlp.down_proj.weight is missing"),
        ("stray", "no part of a llama decoder uses the tensor 'model.layers.0.self_attn.sinks'"),
        ("misshapen", r"model.layers.1.mlp.down_proj.weight has the shape \[64, 127\]; \[64, 128\] is wanted"),
        ("twice", "model.layers.1.mlp.down_proj.weight is there twice"),
        ("norm missing", "came before model.layers.0.input_layernorm.weight, or that one is missing"),
    ],
)
def test_faults_are_errors_by_tensor_name(tmp_path: Path, fault: str, sentence: str) -> None:
    checkpoint = open_checkpoint(str(write_tiny_folder(tmp_path)))
    assert isinstance(checkpoint, FolderCheckpoint)
    tensors = {t.name: StoredTensor(t.name, t.data.clone(), t.stored_bytes) for t in checkpoint.tensors()}
    name = "model.layers.1.mlp.down_proj.weight"
    stored = list(tensors.values())
    match fault:
        case "missing":
            stored.remove(tensors[name])
        case "stray":
            stored.append(StoredTensor("model.layers.0.self_attn.sinks", torch.ones(4), 16))
        case "misshapen":
            stored[stored.index(tensors[name])] = StoredTensor(name, tensors[name].data[:, :127], 1)
        case "twice":
            stored.append(tensors[name])
        case _:
            stored.remove(tensors["model.layers.0.input_layernorm.weight"])
    with pytest.raises(CheckpointError, match=sentence):
        load_weights(Edited(checkpoint, tuple(stored)), CPU, torch.float32, 64)  # type: ignore[arg-type]


def test_a_tied_model_with_a_head_of_its_own_follows_the_configuration(tmp_path: Path) -> None:
    untied = {
        t.name: t.data.clone() for t in open_checkpoint(str(write_tiny_folder(tmp_path / "a", tied=False))).tensors()
    }
    weights = load_weights(
        open_checkpoint(str(write_tiny_folder(tmp_path / "b", tensors=untied))), CPU, torch.float32, 64
    )
    assert weights.head is weights.embedding
    assert torch.equal(weights.embedding, untied["model.embed_tokens.weight"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_have_the_shapes_of_loaded_ones_and_are_repeatable(
    tmp_path: Path, family: str, tied: bool
) -> None:
    checkpoint = open_checkpoint(str(write_tiny_folder(tmp_path, family, tied=tied)))
    loaded = load_weights(checkpoint, CPU, torch.bfloat16, 64)
    drawn, again, other = (random_weights(checkpoint.architecture, CPU, torch.bfloat16, 64, seed) for seed in (1, 1, 2))
    for a, b, c in zip(all_tensors(loaded), all_tensors(drawn), all_tensors(again), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert torch.equal(b, c)
        assert b.isfinite().all()
    assert (drawn.head is drawn.embedding) == tied
    assert not torch.equal(drawn.embedding, other.embedding)


def test_random_weights_keep_a_deep_residual_stream_near_one() -> None:
    sizes = Sizes(layers=40, width=128, heads=4, kv_heads=4, head_dim=32, ffn_width=256, vocabulary=320)
    weights = random_weights(tiny_architecture(sizes=sizes), CPU, torch.float32, 8, 0)
    x = torch.randn(128, generator=torch.Generator().manual_seed(0))
    for layer in weights.layers:
        gate, up = (layer.gate_up.weight @ (x / x.square().mean().sqrt())).chunk(2)
        x = x + layer.down.weight @ (torch.nn.functional.silu(gate) * up)
    assert 0.3 < x.square().mean().sqrt() < 3


def test_expected_bytes_counts_what_is_allocated(tmp_path: Path) -> None:
    architecture = tiny_architecture("qwen3", rope=LLAMA3_ROPE)
    weights = random_weights(architecture, CPU, torch.bfloat16, 1, 0)
    allocated = {id(t): t.numel() * 2 for t in all_tensors(weights) if t.dtype == torch.bfloat16}
    # The two norms of each layer are counted, though they are folded away.
    assert expected_bytes(architecture, torch.bfloat16) == sum(allocated.values()) + 2 * 2 * 64 * 2
