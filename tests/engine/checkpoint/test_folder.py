"""Folders in Hugging Face layout: what is read, what is refused, and how little memory it takes."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.architecture import LinearRope
from engine.checkpoint import GenerationDefaults, JsonTokenizer, open_checkpoint
from engine.checkpoint.folder import open_folder
from engine.errors import CheckpointError, UnsupportedModelError
from tests.checkpoints import (
    LLAMA3_ROPE,
    Sizes,
    random_tensors,
    tiny_architecture,
    write_safetensors,
    write_tiny_folder,
)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file; None takes a key out."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def refusal(folder: Path, kind: type[CheckpointError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_written_folder_is_read_back(tmp_path: Path, family: str, shards: int, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(str(write_tiny_folder(tmp_path / "tiny", family, shards=shards, dtype=dtype)))
    assert checkpoint.name == "tiny"
    assert checkpoint.architecture == tiny_architecture(family)
    assert checkpoint.dtype == dtype
    tensors = random_tensors(checkpoint.architecture)
    read = {stored.name: stored.data.clone() for stored in checkpoint.tensors()}
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name].to(dtype)) for name in tensors)
    assert checkpoint.total_bytes == sum(stored.stored_bytes for stored in checkpoint.tensors())
    dimensions = [stored.data.dim() for stored in checkpoint.tensors()]
    assert dimensions == sorted(dimensions)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("rope", [None, LLAMA3_ROPE, LinearRope(4.0)])
def test_rope_is_read_in_either_spelling(tmp_path: Path, rope: Any, old: bool) -> None:
    folder = write_tiny_folder(tmp_path, rope=rope, old_rope_spelling=old)
    assert open_folder(folder).architecture == tiny_architecture(rope=rope)


def test_the_oldest_spelling_of_the_rope_type(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, old_rope_spelling=True, rope_scaling={"type": "linear", "factor": 2})
    assert open_folder(folder).architecture.rope_scaling == LinearRope(2.0)


def test_a_window_shorter_than_the_context_limits_it_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_folder(write_tiny_folder(tmp_path, "mistral", sliding_window=100)).architecture.context == 100
    assert "sliding_window 100 limits the context from 256 tokens" in caplog.text
    edit(tmp_path / "config.json", sliding_window=None, max_position_embeddings=8192)
    assert open_folder(tmp_path).architecture.context == 4096
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": None}))
    assert open_folder(tmp_path).architecture.context == 8192
    unused = write_tiny_folder(tmp_path, "qwen2", sliding_window=100, use_sliding_window=False)
    assert open_folder(unused).architecture.context == 256


@pytest.mark.parametrize(
    ("family", "override", "sentence"),
    [
        ("llama", {"hidden_act": "gelu"}, "the option hidden_act is 'gelu'"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("llama", {"residual_multiplier": 0.2}, "residual_multiplier"),
        ("llama", {"num_local_experts": 8}, "num_local_experts"),
        ("llama", {"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not native; native are Llama"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}, "mrope_section"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_options_that_change_the_maths_are_refused_by_name(
    tmp_path: Path, family: str, override: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(write_tiny_folder(tmp_path, family, **override), UnsupportedModelError)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ({"architectures": None}, "architectures is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "do not divide evenly"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
        ({"intermediate_size": 64}, "asks for [64, 64]"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight and 8 more is missing"),
        ({"num_hidden_layers": 1}, "no part of a llama decoder uses the tensor"),
        ({"rope_parameters": [1]}, "rope_parameters is [1]"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
    ],
)
def test_broken_configurations_are_named(tmp_path: Path, override: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(write_tiny_folder(tmp_path, **override))


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    folder = write_tiny_folder(tmp_path / "m", shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    assert "'model-00002-of-00002.safetensors', which is not there" in refusal(folder)
    shard.write_bytes(content[:100])
    assert "no sound safetensors file" in refusal(folder)
    shard.write_bytes(content)
    index = folder / "model.safetensors.index.json"
    edit(index, weight_map={"model.norm.weight": "../m/model-00001-of-00002.safetensors"})
    assert "no name of a safetensors file in the folder" in refusal(folder)
    index.unlink()
    assert "2 safetensors files and no model.safetensors.index.json" in refusal(folder)
    (folder / "config.json").write_text("{")
    assert "is no JSON" in refusal(folder)
    (folder / "config.json").write_text("[" * 100_000)
    assert "is no JSON" in refusal(folder)
    (folder / "config.json").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal(folder)
    other = write_tiny_folder(tmp_path / "n")
    (other / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal(other)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, shards=2)
    save_file({"model.norm.weight": torch.ones(64)}, folder / "more.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    edit(folder / "model.safetensors.index.json", weight_map=index["weight_map"] | {"extra": "more.safetensors"})
    assert "is in another shard too" in refusal(folder)


def test_other_types_are_unsupported_by_name(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    tensors = random_tensors(tiny_architecture())
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    write_safetensors(folder, tensors)
    assert "'model.layers.0.mlp.up_proj.weight' has the type F8_E4M3" in refusal(folder, UnsupportedModelError)


def test_known_leftovers_are_left_alone(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_architecture())
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    # A tied model that ships a head all the same: the configuration decides.
    tensors["lm_head.weight"] = torch.zeros(tensors["model.embed_tokens.weight"].shape)
    assert open_folder(write_tiny_folder(tmp_path, tensors=tensors)).architecture.tied_head


def test_sec_04_pickled_weights_are_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle, which can run code when it is opened" in refusal(folder)


def test_settings_and_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    edit(
        folder / "generation_config.json",
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0,
        repetition_penalty=1.05,
        do_sample=True,
        eos_token_id=[0],
    )
    checkpoint = open_folder(folder)
    assert checkpoint.defaults == GenerationDefaults(0.6, 20, 0.95, 0.0, 1.05, eos_ids=(0, 2), bos_id=1)
    assert checkpoint.tokenizer == JsonTokenizer(
        folder / "tokenizer.json", json.loads((folder / "tokenizer_config.json").read_text())
    )
    edit(folder / "generation_config.json", do_sample=False)
    assert open_folder(folder).defaults.temperature == 0.0
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    checkpoint = open_folder(folder)
    assert checkpoint.defaults == GenerationDefaults(eos_ids=(2,), bos_id=1)
    assert checkpoint.tokenizer.config == {}


def test_the_chat_template_is_found_wherever_it_is(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    config = folder / "tokenizer_config.json"
    edit(config, chat_template="from the configuration")
    assert "<|im_start|>" in str(open_folder(folder).chat_template)
    (folder / "chat_template.jinja").unlink()
    assert open_folder(folder).chat_template == "from the configuration"
    edit(config, chat_template=[{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}])
    assert open_folder(folder).chat_template == "b"
    edit(config, chat_template=[{"name": "tool_use", "template": "a"}])
    assert "without one of the name default" in refusal(folder)
    edit(config, chat_template=7)
    assert "chat_template must be a string" in refusal(folder)
    edit(config, chat_template=None)
    assert open_folder(folder).chat_template is None


def test_digests_tell_weights_and_options_apart(tmp_path: Path) -> None:
    one = open_folder(write_tiny_folder(tmp_path / "one", seed=1)).digest()
    assert one == open_folder(write_tiny_folder(tmp_path / "again", seed=1)).digest()
    assert one != open_folder(write_tiny_folder(tmp_path / "two", seed=2)).digest()
    assert one != open_folder(write_tiny_folder(tmp_path / "eps", seed=1, rms_norm_eps=1e-6)).digest()


_MEASURE = """
import sys
from pathlib import Path
import engine.checkpoint.folder as folder_module
def peak_mb():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) / 1024
folder_module._MAPPED_BYTES = int(sys.argv[2])
checkpoint = folder_module.open_folder(Path(sys.argv[1]))
before = peak_mb()
for stored in checkpoint.tensors():
    stored.data.sum()
print(peak_mb() - before)
"""


def _peak_mb(folder: Path, mapped_bytes: int) -> float:
    """Resident memory that reading every tensor of `folder` adds at its peak, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(folder), str(mapped_bytes)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_host_memory_stays_small_while_reading(tmp_path: Path) -> None:
    sizes = Sizes(layers=12, width=512, heads=8, kv_heads=8, head_dim=64, ffn_width=1536)
    folder = write_tiny_folder(tmp_path, sizes=sizes)
    total_mb = open_folder(folder).total_bytes / 2**20
    assert total_mb > 140
    # The real bound is 512 MiB; the same code with a smaller one shows that mappings go.
    assert _peak_mb(folder, 16 << 20) < 60


HOSTILE: tuple[Any, ...] = (
    0,
    -1,
    10**400,
    1e308,
    True,
    "",
    "x\ny",
    [],
    [{}],
    [[]],
    {},
    {"name": []},
    {"rope_type": []},
    {"a": {"b": 1}},
)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"]
)
def test_no_value_of_any_option_gets_past_the_checks(tmp_path: Path, name: str) -> None:
    folder = write_tiny_folder(tmp_path, shards=2)
    (folder / "chat_template.jinja").unlink()
    original = json.loads((folder / name).read_text())
    extra = dict.fromkeys(("chat_template", "temperature", "top_k", "sliding_window", "layer_types", "rope_scaling"))
    for key in original | extra:
        for value in HOSTILE:
            (folder / name).write_text(json.dumps(original | {key: value}))
            try:
                list(open_folder(folder).tensors())
            except CheckpointError as error:
                sentence = str(error)
                assert "\n" not in sentence, sentence
        for text in ("NaN", "Infinity", "1e999", "-0.0"):
            (folder / name).write_text(json.dumps(original | {key: "VALUE"}).replace('"VALUE"', text))
            with contextlib.suppress(CheckpointError):
                open_folder(folder)


def test_promise_17_mutated_safetensors_headers_are_refused_or_read(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    chance = random.Random(17)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(chance.choice((8, 3000)))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            list(open_folder(folder).tensors())
        except CheckpointError as error:
            refused += 1
            sentence = str(error)
            assert "\n" not in sentence, sentence
    assert refused > 200
