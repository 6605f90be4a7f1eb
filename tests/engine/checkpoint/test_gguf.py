"""GGUF files as checkpoints: the embedded model's facts, names, rotary order, quantised tensors."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.architecture import Architecture, LinearRope, RopeFactors
from engine.checkpoint import GenerationDefaults, GgufTokenizer, open_checkpoint
from engine.checkpoint.gguf import canonical_name, half_split, open_gguf
from engine.checkpoint.gguf_header import read_header
from engine.checkpoint.gguf_metadata import Metadata, read_defaults, read_tokenizer
from engine.checkpoint.layout import expected_shapes
from engine.errors import CheckpointError
from tests.checkpoints import random_tensors, tiny_architecture, write_tiny_folder
from tests.gguf_checkpoints import gguf_name, write_tiny_gguf

FAMILIES = ("llama", "qwen2", "qwen3")


def test_the_embedded_model_is_what_it_should_be(embedded_model: Path) -> None:
    start = time.monotonic()
    checkpoint = open_checkpoint("embedded")
    seconds = time.monotonic() - start
    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert checkpoint.architecture == Architecture(
        family="llama",
        layers=30,
        width=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn_width=1536,
        vocabulary=49152,
        context=8192,
        norm_eps=1e-5,
        rope_base=100_000.0,
        tied_head=True,
    )
    tokenizer = checkpoint.tokenizer
    assert isinstance(tokenizer, GgufTokenizer)
    assert (tokenizer.model, tokenizer.pre, tokenizer.add_bos) == ("gpt2", "smollm", False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 0)
    assert (len(tokenizer.tokens), len(tokenizer.merges)) == (49152, 48900)
    assert tokenizer.tokens[:3] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert [index for index, kind in enumerate(tokenizer.token_types) if kind == 3] == list(range(17))
    assert checkpoint.chat_template is not None
    assert "You are a helpful AI assistant named SmolLM" in checkpoint.chat_template
    assert checkpoint.dtype == torch.float32
    assert checkpoint.total_bytes < 98_362_432
    # 0.1 s on two quiet cores; the bound leaves room for busy ones.
    assert seconds < 1.5


def test_txt_10_the_embedded_model_has_both_end_tokens(embedded_model: Path) -> None:
    assert set(open_checkpoint("embedded").defaults.eos_ids) == {0, 2}


def test_embedded_tensors_equal_the_reference_dequantisation(embedded_model: Path) -> None:
    wanted = {"token_embd.weight", "blk.0.attn_q.weight", "blk.7.attn_k.weight", "blk.29.ffn_down.weight"}
    places = {tensor.name: tensor for tensor in read_header(embedded_model).tensors}
    seen = set()
    for stored in open_checkpoint("embedded").tensors():
        name = gguf_name(stored.name)
        if name not in wanted:
            continue
        place = places[name]
        raw = np.fromfile(embedded_model, np.uint8, place.stored_bytes, offset=place.offset)
        kind = gguf.GGMLQuantizationType[place.type.name]
        values = gguf.dequantize(raw.reshape(place.shape[0], -1), kind)
        if "attn_" in name:
            # Undo by the definition: within a head, row 2i is element i of the first half and 2i + 1 of the second.
            heads = values.reshape(-1, 64, 576)
            values = np.concatenate((heads[:, 0::2], heads[:, 1::2]), axis=1).reshape(-1, 576)
        assert np.array_equal(stored.data.numpy(), values)
        seen.add(name)
    assert seen == wanted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_file_holds_what_the_folder_of_the_same_model_holds(tmp_path: Path, family: str, tied: bool) -> None:
    file = open_gguf(write_tiny_gguf(tmp_path / "m.gguf", family, tied=tied))
    folder = open_checkpoint(str(write_tiny_folder(tmp_path / "folder", family, tied=tied)))
    assert file.architecture == folder.architecture == tiny_architecture(family, tied=tied)
    ours = {stored.name: stored.data for stored in file.tensors()}
    theirs = {stored.name: stored.data.clone() for stored in folder.tensors()}
    assert ours.keys() == theirs.keys() == expected_shapes(file.architecture).keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert file.total_bytes == sum(stored.stored_bytes for stored in file.tensors()) == folder.total_bytes


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_each_stored_type_is_read_as_the_reference_reads_it(tmp_path: Path, kind: str) -> None:
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "m.gguf", "qwen3", quantisation=kind))
    assert checkpoint.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    number = gguf.GGMLQuantizationType[kind]
    tensors = random_tensors(checkpoint.architecture)
    for stored in checkpoint.tensors():
        original = tensors[stored.name].numpy()
        if original.ndim > 1:
            original = gguf.dequantize(gguf.quantize(original, number), number)
            assert stored.data.dtype == checkpoint.dtype
        assert np.array_equal(stored.data.float().numpy(), original)


def test_vectors_come_before_matrices(tmp_path: Path) -> None:
    dimensions = [stored.data.dim() for stored in open_gguf(write_tiny_gguf(tmp_path / "m.gguf")).tensors()]
    assert dimensions == sorted(dimensions)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_go_both_ways(family: str) -> None:
    for name in expected_shapes(tiny_architecture(family, tied=False)):
        assert canonical_name(gguf_name(name)) == name
    assert canonical_name("blk.0.ffn_gate_exps.weight") == "blk.0.ffn_gate_exps.weight"


def test_half_split_undoes_the_interleaving() -> None:
    halves = torch.arange(2 * 8 * 3).view(16, 3)
    interleaved = halves.view(2, 2, 4, 3).transpose(1, 2).reshape(16, 3)
    assert interleaved[1].tolist() == halves[4].tolist()
    assert torch.equal(half_split(interleaved, heads=2), halves)


def test_rope_scaling_of_a_file(tmp_path: Path) -> None:
    factors = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    stretched = open_gguf(write_tiny_gguf(tmp_path / "a.gguf", rope_factors=factors))
    assert stretched.architecture.rope_scaling == RopeFactors(factors)
    assert "rope_freqs.weight" not in {stored.name for stored in stretched.tensors()}
    linear = open_gguf(write_tiny_gguf(tmp_path / "b.gguf", rope=LinearRope(4.0)))
    assert linear.architecture.rope_scaling == LinearRope(4.0)
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight has the shape \[3\]; the head size asks for \[8\]"):
        open_gguf(write_tiny_gguf(tmp_path / "c.gguf", rope_factors=(1.0, 1.0, 1.0)))
    with pytest.raises(CheckpointError, match="not above 0"):
        open_gguf(write_tiny_gguf(tmp_path / "d.gguf", rope_factors=(0.0,) * 8))


def test_a_sliding_window_limits_the_context(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", integers={"llama.attention.sliding_window": 64})
    assert open_gguf(path).architecture.context == 64


def test_a_stray_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_architecture())
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    with pytest.raises(CheckpointError, match=r"no part of a llama decoder uses the tensor .*q_proj\.bias"):
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", tensors=tensors))


def test_a_file_cut_after_opening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "m.gguf"))
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[:-5000])
    with pytest.raises(CheckpointError, match="the file has changed"):
        list(checkpoint.tensors())


def test_digests_tell_weights_apart(tmp_path: Path) -> None:
    one = open_gguf(write_tiny_gguf(tmp_path / "one.gguf", seed=1))
    again = open_gguf(write_tiny_gguf(tmp_path / "again.gguf", seed=1))
    two = open_gguf(write_tiny_gguf(tmp_path / "two.gguf", seed=2))
    assert one.digest() == again.digest() != two.digest()


def test_settings_of_newer_files_are_read_and_checked() -> None:
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ("a", "<|eot_id|>", "<|end|>", "</s>"),
        "tokenizer.ggml.token_type": (1, 3, 1, 3),
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 0,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
    }
    metadata = Metadata("m.gguf", values)
    defaults = read_defaults(metadata, read_tokenizer(metadata, 4))
    # `<|end|>` is ordinary text in this vocabulary, so it ends nothing.
    assert defaults == GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95, eos_ids=(3, 0, 1))
    broken = Metadata("m.gguf", values | {"general.sampling.temp": float("nan")})
    with pytest.raises(CheckpointError, match=r"m\.gguf: general\.sampling\.temp is nan"):
        read_defaults(broken, read_tokenizer(broken, 4))
    with pytest.raises(CheckpointError, match="1 to 3 strings"):
        read_tokenizer(metadata, 3)
    with pytest.raises(CheckpointError, match=r"eos_token_id is 4; it must be a whole number from 0 to 3"):
        read_tokenizer(Metadata("m.gguf", values | {"tokenizer.ggml.eos_token_id": 4}), 4)
