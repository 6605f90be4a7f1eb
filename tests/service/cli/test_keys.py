"""`soloist keys`: a key is shown once, its hash is kept."""

from __future__ import annotations

import io
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.__main__ import main
from service.keys import hash_of, read_keys


def test_a_key_is_added_and_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    assert main(["keys", "add", "web", "--file", str(path), "--max-turns", "2"]) == 0
    first = capsys.readouterr().out.strip()
    assert main(["keys", "add", "batch", "--file", str(path), "--session-scope", "web", "--max-priority", "-5"]) == 0
    second = capsys.readouterr().out.strip()

    keys = read_keys(path)
    web, batch = keys.find(first), keys.find(second)
    assert web is not None
    assert batch is not None
    assert (web.name, web.max_turns, web.session_scope) == ("web", 2, "web")
    assert (batch.name, batch.max_priority, batch.session_scope) == ("batch", -5, "web")
    assert first not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["keys.yaml"]


def test_a_file_that_would_be_wrong_is_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    main(["keys", "add", "web", "--file", str(path)])
    before = path.read_text()
    for wrong in (["web"], ["other", "--max-turns", "0"], ["no good name"]):
        assert main(["keys", "add", *wrong, "--file", str(path)]) == 2
        assert path.read_text() == before
    capsys.readouterr()


def test_a_key_of_ones_own_is_hashed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x" * 24 + "\n"))
    assert main(["keys", "hash"]) == 0
    assert capsys.readouterr().out.strip() == hash_of("x" * 24)

    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert main(["keys", "hash"]) == 2
    assert "short\n" not in capsys.readouterr().err


def test_what_is_no_file_of_keys_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "keys.yaml"
    binary.write_bytes(b"\xff")
    for path, code, says in (
        (Path("/"), 1, "Is a directory"),
        (tmp_path, 1, "Is a directory"),
        (binary, 2, "not UTF-8"),
    ):
        assert main(["keys", "add", "web", "--file", str(path)]) == code
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert binary.read_bytes() == b"\xff"


def test_keys_added_at_once_are_all_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    adding = [
        subprocess.Popen(
            [sys.executable, "-m", "service", "keys", "add", f"key-{number}", "--file", str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    made = [process.communicate(timeout=120)[0].strip() for process in adding]

    assert [process.returncode for process in adding] == [0] * len(adding)
    keys = read_keys(path)
    assert all(keys.find(key) is not None for key in made)
    assert [found.name for found in tmp_path.iterdir()] == ["keys.yaml"]


@pytest.mark.parametrize("flags", [("--keys",), ("--config",)])
def test_a_file_without_an_end_is_told_and_not_read(flags: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service", "serve", *flags, "/dev/zero", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "/dev/zero: is larger than 1048576 bytes" in done.stderr
