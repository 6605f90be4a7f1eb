"""What the bytes of a remote model should be: the lines of `SHA256SUMS` beside its files, and the operator's pin."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import CheckpointError

_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?([^/]+)")
MAX_SUMS_BYTES = 1 << 20


def read_sums(where: str, raw: bytes) -> dict[str, str]:
    """Name to digest, from what `sha256sum` prints. Raises CheckpointError for any other line."""
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise CheckpointError(f"{where}: is not UTF-8; it should be what `sha256sum *` prints") from None
    sums = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CheckpointError(f"{where}: line {number} is not of the form that `sha256sum *` prints")
        sums[match[2]] = match[1].lower()
    return sums


def wanted_sum(sums: Mapping[str, str] | None, name: str, where: str) -> str | None:
    """The digest that the object `name` must have; None where there are no sums at all."""
    if sums is None:
        return None
    if name not in sums:
        raise CheckpointError(
            f"{where}: SHA256SUMS beside it does not name {name}; add its line, or remove that object"
        )
    return sums[name]


def check_sum(where: str, found: str, wanted: str | None) -> None:
    """Raise CheckpointError unless the digests are the same."""
    if wanted is not None and found != wanted:
        raise CheckpointError(f"{where}: its sha256 is {found}; SHA256SUMS asks for {wanted}")
