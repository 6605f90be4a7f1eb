"""The gateway's own key, read again when its file changes. What cannot be used leaves the one before."""

from __future__ import annotations

import logging
from pathlib import Path

from service.bounded_file import read_bounded
from service.file_watch import FileWatch

logger = logging.getLogger("soloist.gateway")


class UnusableFileError(Exception):
    """A key or a certificate cannot be used. One line: which file, and why."""


class OwnKey:
    """The key of callers that send none of their own."""

    def __init__(self, name: str | None) -> None:
        """Raises UnusableFileError. Without a file there is no key."""
        self._path = None if name is None else Path(name)
        self._watch = FileWatch([self._path] if self._path else [])
        self._key = None if self._path is None else _key_of(self._path)

    def now(self) -> str | None:
        """As the file is."""
        if self._path is not None and self._watch.changed():
            try:
                self._key = _key_of(self._path)
            except UnusableFileError as error:
                self._watch.again()
                logger.error("the changed key cannot be used; the one before stays", extra=_fields(error=str(error)))
            else:
                logger.info("key read again", extra=_fields(file=str(self._path)))
        return self._key


def _key_of(path: Path) -> str:
    try:
        key = read_bounded(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not ASCII text"
        raise UnusableFileError(f"--api-key-file {path}: {reason}") from None
    if not key or not key.isprintable():
        raise UnusableFileError(f"--api-key-file {path}: must hold one key, printable ASCII characters")
    return key


def _fields(**fields: str) -> dict[str, dict[str, str]]:
    return {"fields": fields}
