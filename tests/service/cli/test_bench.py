"""`soloist bench decode` on a tiny model: a table, then one line of JSON whose figures belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.__main__ import main
from tests.checkpoints import write_tiny_folder


def test_decode_prints_a_table_and_a_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    flags = ["--device", "cpu", "--threads", "1", "--prompt-tokens", "8", "--new-tokens", "16", "--turns", "2"]
    assert main(["bench", "decode", "--model", str(model), "--precision", "float32", "bfloat16", *flags]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in table[3:]] == ["float32", "bfloat16"]
    found = json.loads(last)
    wide, narrow = found["results"]
    assert wide["steps"] == sum(wide["eager_steps"].values()) == 16
    assert wide["tokens_per_s"] == pytest.approx(1 / wide["seconds_per_token"])
    share = wide["bytes_per_token"] / wide["seconds_per_token"] / found["device"]["read_bytes_per_s"]
    assert wide["share_of_read_bandwidth"] == pytest.approx(share)
    assert wide["bytes_per_token"] == 2 * narrow["bytes_per_token"]


def test_a_context_too_short_for_the_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--device", "cpu", "--context", "100"]) == 2
    assert "context: must hold 32 + 128 tokens" in capsys.readouterr().err


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--device", "cpu", "--model", str(tmp_path / "nothing")]) == 1
    assert "no such file" in capsys.readouterr().err


def test_a_plot_is_a_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    model, picture = write_tiny_folder(tmp_path / "tiny"), tmp_path / "share.png"
    flags = ["--device", "cpu", "--prompt-tokens", "4", "--new-tokens", "4", "--turns", "1", "--plot", str(picture)]
    assert main(["bench", "decode", "--model", str(model), *flags]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "decode", "--device", "cpu", "--plot", str(tmp_path / "share.png")]) == 1
    assert "soloist[bench]" in capsys.readouterr().err


def test_a_plot_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--device", "cpu", "--plot", "share.svg"]) == 2
    assert "ends in .png" in capsys.readouterr().err


def test_a_cpu_has_nothing_to_tune(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tune", "--device", "cpu", "--model", "smollm2-135m"]) == 1
    assert "fused kernels, which need a CUDA device" in capsys.readouterr().err
