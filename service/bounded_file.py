"""Files that a person names, read up to a bound: `/dev/zero` or a disk image given by mistake is told, not read."""

from __future__ import annotations

import errno
from pathlib import Path

MAX_BYTES = 1 << 20


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The file's bytes. OSError where it cannot be read or is larger than `limit`."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
    return data
