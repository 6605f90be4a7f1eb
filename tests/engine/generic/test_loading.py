"""What the generic path reads and refuses, and that the native path never comes near it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import Engine, EngineConfig
from engine.errors import CheckpointError, UnsupportedModelError
from tests.checkpoints import write_tiny_folder
from tests.generic_checkpoints import write_generic_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_generic_folder(tmp_path / "gpt2", "gpt2")


def edit(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


def refusal(folder: Path, kind: type[CheckpointError] = CheckpointError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        Engine.open(EngineConfig(**{"model": str(folder), "device": "cpu", **options}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("family", "override"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
        ("llama", {"hidden_act": "gelu"}),
    ],
)
def test_what_a_native_family_lacks_is_played_by_transformers(
    tmp_path: Path, family: str, override: dict[str, Any]
) -> None:
    folder = write_generic_folder(
        tmp_path / "m",
        family,
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, **override},
    )
    engine = Engine.open(EngineConfig(model=str(folder), device="cpu", context=64))
    assert engine.info.decoder.startswith("transformers ")
    engine.close()


def test_options_that_no_class_of_the_family_honours_stay_refused(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, residual_multiplier=0.2)
    assert "residual_multiplier is 0.2; that is not served" in refusal(folder, UnsupportedModelError)


def test_without_transformers_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("engine.generic")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = refusal(folder, UnsupportedModelError)
    assert "'GPT2LMHeadModel' is not native" in said
    assert said.endswith("is not installed: pip install 'soloist[generic]'")


def test_the_native_path_does_not_import_transformers(tmp_path: Path) -> None:
    program = (
        "import sys; from engine import Engine, EngineConfig;"
        "Engine.open(EngineConfig(model=sys.argv[1], device='cpu')).close();"
        "sys.exit('transformers' in sys.modules)"
    )
    native = write_tiny_folder(tmp_path)
    assert subprocess.run([sys.executable, "-c", program, str(native)], check=False).returncode == 0


def test_fused_kernels_are_for_native_models(folder: Path) -> None:
    assert "fused kernels play native models only" in refusal(folder, UnsupportedModelError, kernels="fused")


def test_sec_04_code_and_pickles_of_a_folder_are_never_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (folder / "modeling_mine.py").write_text(f"open({str(marker)!r}, 'w')\n")
    edit(
        folder,
        model_type="mine",
        architectures=["MineForCausalLM"],
        auto_map={"AutoConfig": "modeling_mine.C", "AutoModelForCausalLM": "modeling_mine.M"},
    )
    assert "does not know it" in refusal(folder, UnsupportedModelError)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "is a pickle" in refusal(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2ForSequenceClassification"]}, "is no causal language model of the type 'gpt2'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is set"),
    ],
)
def test_configurations_that_are_not_served_are_named(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    edit(folder, **changes)
    assert sentence in refusal(folder, UnsupportedModelError)


def test_an_adapter_is_no_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    assert "merge it into its model" in refusal(folder)


def test_tensors_are_held_to_account_by_name(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "transformer.h.1.mlp.c_fc.weight"

    def save(**changes: torch.Tensor | None) -> None:
        wanted = {key: value for key, value in (tensors | changes).items() if value is not None}
        save_file(wanted, path, {"format": "pt"})

    save(**{name: None})
    assert f"the tensor '{name}' is missing" in refusal(folder)
    save(**{name: tensors[name][:, :5].contiguous()})
    assert f"the tensor '{name}' has another shape" in refusal(folder)
    save(extra=torch.ones(3))
    assert "the tensor 'extra' is used by no part of the model" in refusal(folder)
    save(**{"transformer.h.0.attn.masked_bias": torch.ones(1), "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4)})
    Engine.open(EngineConfig(model=str(folder), device="cpu")).close()
