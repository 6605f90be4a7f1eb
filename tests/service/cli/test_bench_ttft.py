"""`soloist bench ttft` on a tiny model: both turns, in milliseconds and in decode steps of the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.__main__ import main
from tests.checkpoints import write_tiny_folder

FLAGS = ["--device", "cpu", "--threads", "1", "--turns", "2"]


def test_both_turns_are_told_in_milliseconds_and_in_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    sizes = ["--new-turn-tokens", "12", "--warm-tokens", "50", "--prompt-tokens", "70", "--prefill-chunk", "32"]
    assert main(["bench", "ttft", "--model", str(model), *FLAGS, *sizes]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    warm, empty = json.loads(last)["results"]
    assert (warm["held_tokens"], warm["new_tokens"]) == (50, 12)
    assert (empty["held_tokens"], empty["new_tokens"]) == (0, 70)
    # The last token of a prompt goes through the decode step.
    assert [chunk["tokens"] for chunk in warm["chunks"]] == [11]
    assert [chunk["tokens"] for chunk in empty["chunks"]] == [32, 32, 5]
    assert all(chunk["graph"] is None for chunk in empty["chunks"])
    assert "2 x 32 eager, 5 eager" in table[-1]
    for result in (warm, empty):
        assert result["in_steps"] == pytest.approx(result["seconds"] / result["step_seconds"])
        assert 0 < result["seconds"] <= result["most_seconds"]


def test_a_turn_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    sizes = ["--warm-tokens", "0", "--prompt-tokens", "20"]
    assert main(["bench", "ttft", "--model", str(model), *FLAGS, *sizes]) == 0
    (only,) = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert only["held_tokens"] == 0


def test_turns_longer_than_the_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    assert main(["bench", "ttft", "--model", str(model), *FLAGS]) == 2
    assert "warm_tokens: must leave room for 32 more tokens in the 256 of" in capsys.readouterr().err
