"""Bytes that are no text are refused with a sentence, and a history that cannot be kept is done without."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.line_reader import LineReader, NotTextError, checked_text
from service.settings import state_directory


def test_txt_11_undecodable_bytes_are_named_with_their_place() -> None:
    typed = b"caf\xe9 au lait".decode("utf-8", "surrogateescape")
    with pytest.raises(NotTextError, match=r"byte 0xe9 at character 3"):
        checked_text(typed, "the line")


def test_txt_11_a_lone_surrogate_is_no_byte() -> None:
    with pytest.raises(NotTextError, match=r"U\+D800 at character 1"):
        checked_text("a\ud800", "--prompt")


@pytest.mark.parametrize("text", ["", "plain", "한국어", "🎹 emoji", "tab\tnewline\n"])
def test_text_passes_unchanged(text: str) -> None:
    assert checked_text(text, "the line") == text


def test_history_is_kept_for_the_owner_alone(tmp_path: Path) -> None:
    history = tmp_path / "state" / "soloist" / "chat_history"
    LineReader(history).save()
    assert history.stat().st_mode & 0o777 == 0o600


def test_history_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    LineReader(blocked / "chat_history").save()


def test_history_that_is_a_directory_is_done_without(tmp_path: Path) -> None:
    LineReader(tmp_path).save()


def test_history_lies_in_the_xdg_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_directory({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "soloist"
    monkeypatch.setenv("HOME", str(tmp_path))
    for not_absolute in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert state_directory(not_absolute) == tmp_path / ".local" / "state" / "soloist"


def test_without_a_home_there_is_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert state_directory({}) is None
    LineReader(None).save()
