"""The file of keys: what it may say, who is found, what its errors keep to themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.file_watch import LOOK_EVERY_S
from service.keys import ApiKey, KeyFile, KeyFileError, Keyring, entry_text, hash_of, new_key, read_keys
from tests.service.core import HandClock

KEY = "a-key-that-is-long-enough-to-be-one"
HASH = hash_of(KEY)


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_entry_says_what_its_key_may(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        f"keys:\n  - name: web\n    hash: {HASH}\n    session_scope: team\n    max_turns: 2\n    max_priority: 7\n"
        f"  - name: batch\n    hash: {hash_of(KEY + '2')}\n    session_scope: none\n",
    )

    web, batch = read_keys(path).keys

    assert (web.name, web.session_scope, web.max_turns, web.max_priority) == ("web", "team", 2, 7)
    assert (batch.name, batch.session_scope, batch.max_turns, batch.max_priority) == ("batch", None, None, 0)
    assert read_keys(path).find(KEY) is not None
    assert read_keys(path).find(KEY[:-1]) is None
    assert read_keys(path).find("") is None


def test_what_is_made_here_reads_back(tmp_path: Path) -> None:
    key = new_key()
    path = file_of(tmp_path, "keys:\n" + entry_text({"name": "a", "hash": hash_of(key), "max_turns": "3"}))

    found = read_keys(path).find(key)

    assert found == ApiKey("a", found.digest if found else b"", "a", 3, 0)
    assert new_key() != key


def test_sec_05_every_entry_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append(ours)
        return ours == theirs

    monkeypatch.setattr("service.keys.hmac.compare_digest", compare)
    keys = [ApiKey(name, bytes.fromhex(hash_of(name)[7:]), name) for name in ("first", "second", "third")]

    for asked in ("first", "third", "nobody"):
        compared.clear()
        found = Keyring(keys).find(asked)
        assert [key.digest for key in keys] == compared
        assert (found.name if found else "nobody") == asked


def test_a_key_does_not_show_in_what_is_printed_of_it() -> None:
    assert HASH[7:] not in repr(ApiKey("a", bytes.fromhex(HASH[7:]), "a"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold `keys:`"),
        ("keys: []\n", "must hold `keys:`"),
        ("key:\n  - name: a\n", "must hold `keys:`"),
        ("keys:\n  - a\n", ":2: must hold `keys:`"),
        (f"keys:\n  - hash: {HASH}\n", ":2: a key needs a name"),
        ("keys:\n  - name: a\n", ":2: a key needs a hash"),
        (f"keys:\n  - name: a\n    hash: {KEY}\n", ":3: hash must be sha256:"),
        (f"keys:\n  - name: a\n    {KEY}: b\n", ":3: unknown field"),
        (f"keys:\n  - name: a\n    hash: {HASH}\n    max_turn: 3\n", ":4: unknown field; did you mean max_turns?"),
        (f"keys:\n  - name: a\n    hash: {HASH}\n    max_turns: 0\n", ":4: max_turns must be a whole number from 1"),
        (f"keys:\n  - name: a\n    hash: {HASH}\n    max_priority: 101\n", "from -100 to 100"),
        (f"keys:\n  - name: a\n    hash: {HASH}\n  - name: b\n    hash: {HASH}\n", ":4: this key is listed twice"),
        (f"keys:\n  - name: a\n    hash: {HASH}\n  - name: a\n    hash: {hash_of('b')}\n", "a second key named a"),
        (f"keys:\n  - name: a\n    name: {KEY}\n", "name is set twice"),
        (f"keys:\n  - name: 'a b'\n    hash: {HASH}\n", "name must be 1 to 64"),
        (f"keys: {{\n  {KEY}\n", "is not YAML"),
        (f"keys:\n  - name: a\n    [{KEY}]: b\n", ":3: a field's name must be a single word"),
        ("keys: " + "[" * 3000, ":1: is nested deeper than a file of keys can be"),
    ],
)
def test_sec_05_a_bad_file_is_named_with_its_line_and_shows_nothing(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        read_keys(file_of(tmp_path, text))

    assert says in str(caught.value)
    assert KEY not in str(caught.value)
    assert HASH[7:] not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        read_keys(tmp_path / "none.yaml")


def test_a_change_is_read_and_one_that_cannot_be_used_is_not(tmp_path: Path) -> None:
    clock = HandClock()
    path = file_of(tmp_path, f"keys:\n  - name: a\n    hash: {HASH}\n")
    keys = KeyFile(path, clock)

    other = f"keys:\n  - name: other\n    hash: {hash_of(KEY + 'x')}\n"
    path.write_text(other, encoding="utf-8")
    assert keys.find(KEY) is not None  # it looks now and then, not at each call
    clock.now_s += LOOK_EVERY_S
    assert keys.find(KEY) is None
    assert keys.find(KEY + "x") is not None

    path.write_text("keys:\n  - nonsense\n", encoding="utf-8")
    clock.now_s += LOOK_EVERY_S
    assert keys.find(KEY + "x") is not None
    path.unlink()
    clock.now_s += LOOK_EVERY_S
    assert keys.find(KEY + "x") is not None


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    clock = HandClock()
    for name, key in (("old", KEY), ("new", KEY + "x")):
        (tmp_path / name).write_text(f"keys:\n  - name: a\n    hash: {hash_of(key)}\n", encoding="utf-8")
        os.utime(tmp_path / name, (1, 1))
    link = tmp_path / "keys.yaml"
    link.symlink_to(tmp_path / "old")
    keys = KeyFile(link, clock)

    moved = tmp_path / "moved"
    moved.symlink_to(tmp_path / "new")
    moved.replace(link)
    clock.now_s += LOOK_EVERY_S

    assert keys.find(KEY) is None
    assert keys.find(KEY + "x") is not None
