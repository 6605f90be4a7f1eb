"""`soloist chat` with a server that wants to know who asks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.keys import entry_text, hash_of
from tests.certificates import Authority
from tests.fakes import FakeEngine, saying
from tests.service.cli.threaded_server import ThreadedServer

KEY = "the-key-that-nobody-else-has"
Environment = dict[str, str]


@dataclass
class Guarded:
    """A server with TLS both ways and keys, and the files of one whom it lets in."""

    server: ThreadedServer
    flags: tuple[str, ...]
    key: Path


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    authority = Authority.make(tmp_path, "ca")
    cert, key = authority.issue(tmp_path, "server", "127.0.0.1")
    mine = authority.issue(tmp_path, "me", "me@example.org")
    keys, key_file = tmp_path / "keys.yaml", tmp_path / "key.txt"
    keys.write_text("keys:\n" + entry_text({"name": "me", "hash": hash_of(KEY)}))
    key_file.write_text(KEY + "\n")
    settings = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(authority.ca), "keys": str(keys)}
    with ThreadedServer(FakeEngine(answer=saying("Welcome.")), **settings) as server:
        flags = ("--tls-ca", str(authority.ca), "--tls-cert", str(mine[0]), "--tls-key", str(mine[1]))
        yield Guarded(server, flags, key_file)


def chat(guarded: Guarded, environment: Environment, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", "chat", "--target", guarded.server.target, "--prompt", "Hi", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert KEY not in done.stderr
    return done


def test_files_open_the_door(guarded: Guarded, environment: Environment) -> None:
    done = chat(guarded, environment, *guarded.flags, "--api-key-file", str(guarded.key))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Welcome.\n", "")


def test_without_them_it_is_one_line(guarded: Guarded, environment: Environment) -> None:
    done = chat(guarded, environment, *guarded.flags)
    assert done.returncode == 1
    assert "authorization: Bearer" in done.stderr
    assert len(done.stderr.splitlines()) == 1

    guarded.key.write_text("two\nlines")
    for flags, named in (
        ((*guarded.flags, "--api-key-file", "/nowhere/key.txt"), "--api-key-file /nowhere/key.txt: No such file"),
        ((*guarded.flags, "--api-key-file", str(guarded.key)), "api_key: must be printable ASCII"),
        (("--tls-ca", "/nowhere/ca.pem"), "/nowhere/ca.pem: No such file"),
        (("--tls-cert", "/nowhere/me.pem"), "a certificate and its key go together"),
    ):
        done = chat(guarded, environment, *flags)
        assert done.returncode == 2
        assert named in done.stderr
        assert len(done.stderr.splitlines()) == 1
