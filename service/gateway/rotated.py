"""Keys and certificates of the gateway's own, read again when files change. What cannot be used leaves those before."""

from __future__ import annotations

import logging
import ssl
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


class Https:
    """The certificate of the HTTP port: a new connection gets what the files hold then."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises UnusableFileError."""
        self._files = certificate, key
        self._watch = FileWatch([Path(certificate), Path(key)])
        self._now = _context_of(*self._files)

    def context(self) -> ssl.SSLContext:
        """For a listener. Each handshake looks at the files."""
        listening = _context_of(*self._files)
        listening.sni_callback = self._at_handshake
        return listening

    def _at_handshake(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _of: ssl.SSLContext) -> None:
        if self._watch.changed():
            try:
                self._now = _context_of(*self._files)
            except UnusableFileError as error:
                self._watch.again()  # perhaps the certificate is new and its key not there yet
                said = "the changed certificate cannot be used; the one before stays"
                logger.error(said, extra=_fields(error=str(error)))
            else:
                logger.info("certificate read again", extra=_fields(file=self._files[0]))
        connection.context = self._now


def _context_of(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")  # without one it would ask a terminal
    except ssl.SSLError:
        raise UnusableFileError(
            f"--https-cert {certificate} and --https-key {key}: must be a PEM certificate with its chain and its own "
            "unencrypted key"
        ) from None
    except OSError as error:
        raise UnusableFileError(f"--https-cert and --https-key: {error.strerror}") from None
    return context


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
