"""Digests of model files: the full sha256 that a pin is held against, and a quick sample that names a checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from engine.errors import CheckpointError

PINNED_SUFFIXES = (".json", ".jinja", ".safetensors")
_WINDOWS = 256
_WINDOW_BYTES = 4096


def file_sha256(path: Path) -> str:
    """sha256 of the file, in hex: what `sha256sum` prints."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path) -> str:
    """sha256 over everything that can be read from a model folder: what this prints, run inside the folder:

    `LC_ALL=C; sha256sum *.jinja *.json *.safetensors | sort -k 2 | sha256sum`
    """
    files = [path for path in folder.iterdir() if path.suffix in PINNED_SUFFIXES]
    return lines_sha256({path.name: file_sha256(path) for path in files})


def lines_sha256(digests: Mapping[str, str]) -> str:
    """sha256 over the lines that `sha256sum` prints for files of these names and digests, sorted by name."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def check_pin_form(sha256: str) -> None:
    """Raise CheckpointError where a pin is no sha256."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", sha256) is None:
        raise CheckpointError(f"the sha256 pin {sha256[:80]!a} is not 64 hexadecimal digits")


def check_pin(path: Path, sha256: str) -> None:
    """Raise CheckpointError unless the file or folder at `path` has the digest `sha256`."""
    check_pin_form(sha256)
    try:
        found = folder_sha256(path) if path.is_dir() else file_sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if found != sha256.lower():
        raise CheckpointError(f"{path}: its sha256 is {found}; the pin asks for {sha256.lower()}")


def sampled_digest(files: Iterable[Path], facts: object) -> str:
    """sha256 over the decoder's facts (their repr) and, of each file, its size and 256 windows of 4 KiB, evenly spread.

    It tells checkpoints of one shape apart without reading gigabytes. It is no protection: for that there is the pin.
    """

    def windows(path: Path) -> tuple[int, list[bytes]]:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            return size, [_window(file, start, count) for start, count in sampled_windows(size)]

    return windows_digest(map(windows, files), facts)


def sampled_windows(size: int) -> list[tuple[int, int]]:
    """Where the windows of a file of `size` bytes begin, and how long they are: evenly spread, and the last bytes."""
    starts = [*range(0, size, max(_WINDOW_BYTES, size // _WINDOWS)), max(0, size - _WINDOW_BYTES)]
    return [(start, min(_WINDOW_BYTES, size - start)) for start in starts]


def windows_digest(files: Iterable[tuple[int, Iterable[bytes]]], facts: object) -> str:
    """The digest of `sampled_digest`, from the size of each file and what its windows hold."""
    digest = hashlib.sha256(repr(facts).encode())
    for size, windows in files:
        digest.update(size.to_bytes(8, "little"))
        for window in windows:
            digest.update(window)
    return digest.hexdigest()


def _window(file: BinaryIO, start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)
