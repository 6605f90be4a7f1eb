"""What torch raises becomes an error of ours that names the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, faults
from engine.errors import CheckpointError, EngineError, FatalDeviceError, OutOfDeviceMemoryError, StepError
from tests.checkpoints import write_tiny_folder


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (RuntimeError("shapes do not fit\nat::native"), StepError, "loading the model failed: shapes do not fit"),
        (
            torch.OutOfMemoryError("tried to allocate 2 GiB"),
            OutOfDeviceMemoryError,
            "loading the model failed: the device has no memory left: tried to allocate 2 GiB",
        ),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered"),
            FatalDeviceError,
            "loading the model failed and the device is lost: CUDA error: an illegal memory access was encountered",
        ),
    ],
)
def test_an_error_says_what_failed(raised: Exception, kind: type[EngineError], says: str) -> None:
    with pytest.raises(kind) as caught, faults.named("loading the model"):
        raise raised
    assert str(caught.value) == says


def test_errors_of_ours_pass_as_they_are() -> None:
    ours = CheckpointError("no such file")
    with pytest.raises(CheckpointError) as caught, faults.named():
        raise ours
    assert caught.value is ours


def test_a_load_that_fails_is_no_failed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("mmap failed")

    monkeypatch.setattr("engine.engine.load_model", fail)
    with pytest.raises(StepError, match=r"^loading the model failed: mmap failed$"):
        Engine.open(EngineConfig(model=str(write_tiny_folder(tmp_path)), device="cpu"))


def test_a_model_without_a_chat_template_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_folder(tmp_path)
    (folder / "chat_template.jinja").unlink()

    def read(*_: Any) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("engine.engine.load_model", read)
    with pytest.raises(CheckpointError, match="no chat template"):
        Engine.open(EngineConfig(model=str(folder), device="cpu"))
