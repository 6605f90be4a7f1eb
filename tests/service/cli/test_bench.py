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
