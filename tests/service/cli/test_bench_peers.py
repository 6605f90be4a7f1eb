"""`soloist bench peers` on a tiny model: transformers on the same weights gives the same ids."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from service.__main__ import main
from tests.checkpoints import LLAMA3_ROPE, write_tiny_folder

FLAGS = ["--device", "cpu", "--threads", "1", "--prompt-tokens", "9", "--new-tokens", "12", "--rounds", "2"]


@pytest.mark.parametrize(
    ("family", "rope"), [("llama", LLAMA3_ROPE), ("mistral", None), ("qwen2", None), ("qwen3", None)]
)
def test_transformers_on_the_same_weights_answers_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, rope: Any
) -> None:
    model = write_tiny_folder(tmp_path / "tiny", family, rope=rope)
    assert main(["bench", "peers", "--model", str(model), *FLAGS]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    ours, theirs = found["results"]
    assert ours["player"] == "soloist"
    assert (theirs["player"], theirs["precision"]) == ("eager", "float32")
    assert theirs["answers_equal"] == theirs["rounds"] == 2
    assert theirs["ours_is_faster"] == pytest.approx(theirs["seconds_per_token"] / ours["seconds_per_token"])
    assert "2 of 2" in table[-2]
    assert found["versions"]["transformers"]


@pytest.mark.parametrize(("flags", "package"), [([], "transformers"), (["--llamacpp"], "xllamacpp")])
def test_a_package_that_is_not_there_is_named(
    flags: list[str], package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> ModuleType:
        if name == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    assert main(["bench", "peers", "--device", "cpu", *flags]) == 1
    said = capsys.readouterr().err
    assert f"needs the package {package}" in said
    assert "pip install" in said
