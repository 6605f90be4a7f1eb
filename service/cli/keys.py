"""`soloist keys`: make API keys for a server's file of keys. A key is shown once; the file holds its hash only."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.bounded_file import read_bounded
from service.cli.errors import CommandError, UsageError
from service.keys import HIGHEST_PRIORITY, SHORTEST_KEY, KeyFileError, entry_text, hash_of, new_key, read_keys

LONGEST_KEY = 4096  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist keys`."""
    parser.epilog = "A running server reads the file again when it changes."
    acts = parser.add_subparsers(title="acts", metavar="ACT", dest="act", required=True)
    add = acts.add_parser("add", help="make a key, add it to a file, and show it this once")
    add.add_argument("name", metavar="NAME", help="whom the log calls so")
    add.add_argument("--file", required=True, type=Path, help="the file that `soloist serve --keys` reads")
    add.add_argument("--max-turns", metavar="N", help="turns that may wait or play at once (default: no bound)")
    add.add_argument("--max-priority", metavar="N", help=f"from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY} (default: 0)")
    add.add_argument(
        "--session-scope", metavar="SCOPE", help="keys of one scope continue each other's sessions (default: NAME)"
    )
    acts.add_parser("hash", help="read a key of your own from standard input, and print its hash")


def run(arguments: argparse.Namespace) -> int:
    """Do as `arguments` say; 0 when done."""
    if arguments.act == "hash":
        key = sys.stdin.readline(LONGEST_KEY + 2).strip()
        if len(key) < SHORTEST_KEY:
            raise UsageError(f"a key has at least {SHORTEST_KEY} characters; `soloist keys add` makes a random one")
        if len(key) > LONGEST_KEY:
            raise UsageError(f"a key has at most {LONGEST_KEY} characters: all headers of a call must fit together")
        print(hash_of(key))
        return 0
    key = new_key()
    fields = {"name": arguments.name, "hash": hash_of(key)}
    for field in ("session_scope", "max_turns", "max_priority"):
        if (value := getattr(arguments, field)) is not None:
            fields[field] = value
    _add(arguments.file, entry_text(fields))
    print(key)
    return 0


def _add(path: Path, entry: str) -> None:
    """Add an entry; the old file stays if the new one would not be right, and whenever this ends halfway."""
    trial = path.parent / (path.name + ".new")
    try:
        with _alone(path.parent):
            try:
                before = read_bounded(path).decode("utf-8") if path.exists() else "keys:\n"
                with os.fdopen(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(f"{before.rstrip(chr(10))}\n{entry}".encode())
                    file.flush()
                    os.fsync(file.fileno())
                read_keys(trial)
                trial.replace(path)
            finally:
                trial.unlink(missing_ok=True)
    except KeyFileError as error:
        raise UsageError(str(error).replace(str(trial), str(path))) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While nobody else adds a key there. The folder is what is locked: a file is another one after its renewal."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
