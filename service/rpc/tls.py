"""TLS and mutual TLS, with certificates that are read again when their files change."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from service.bounded_file import read_bounded
from service.file_watch import FileWatch

logger = logging.getLogger("soloist.tls")


class TlsError(Exception):
    """The certificates cannot be used. One line: which file, and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        certificate: the server's, its chain after it.
        client_ca: who signs clients' certificates; None asks clients for none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


def server_credentials(files: TlsFiles, clock: Callable[[], float] = time.monotonic) -> grpc.ServerCredentials:
    """Credentials that follow the files: a new connection gets what they hold then. TlsError if they cannot be used."""
    first = _read(files)
    paths = [files.certificate, files.key, *([files.client_ca] if files.client_ca else [])]
    watch = FileWatch(paths, clock)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in a thread of its own; None is no change."""
        if not watch.changed():
            return None
        try:
            changed = _read(files)
        except TlsError as error:
            watch.again()  # perhaps the certificate is new and its key not there yet
            logger.error("the changed certificates cannot be used; those before stay", extra=_fields(error=str(error)))
            return None
        logger.info("certificates read again", extra=_fields(certificate=str(files.certificate)))
        return changed

    mutual = files.client_ca is not None
    # Its stub knows nothing of None, which the documentation asks for.
    return grpc.dynamic_ssl_server_credentials(first, fetch, mutual)  # type: ignore[arg-type]


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    certificate, key = _bytes(files.certificate), _bytes(files.key)
    client_ca = None if files.client_ca is None else _bytes(files.client_ca)
    # gRPC takes anything here and then fails each handshake, so the files are tried first.
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        trial.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, ValueError):
        raise TlsError(
            f"{files.certificate} and {files.key}: must be a PEM certificate with its chain and its own unencrypted key"
        ) from None
    if files.client_ca is not None and client_ca is not None:
        try:
            trial.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError):
            raise TlsError(f"{files.client_ca}: must hold PEM certificates") from None
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)


def _bytes(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from None


def _fields(**fields: str) -> dict[str, dict[str, str]]:
    return {"fields": fields}
