"""Whom a client trusts, and how it says who it is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from service.client.errors import bad_request

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the server. Files hold PEM.

    Attributes:
        ca: who signs the server's certificate; None trusts what gRPC ships.
        certificate, key: one's own, where the server asks for it.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. BadRequestError names a file that cannot be used."""
        if (self.certificate is None) != (self.key is None):
            raise bad_request("tls", "a certificate and its key go together; give both or neither")
        ca, key, certificate = (_read(path) for path in (self.ca, self.key, self.certificate))
        self._try(ca)
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def _try(self, ca: bytes | None) -> None:
        """gRPC takes anything here and then fails each handshake."""
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca is not None:
            try:
                trial.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
            except (ssl.SSLError, ValueError):
                raise bad_request("tls", f"{self.ca}: must hold PEM certificates") from None
        if self.certificate is not None and self.key is not None:
            try:
                trial.load_cert_chain(self.certificate, self.key, password="")
            except (ssl.SSLError, ValueError):
                right = "must be a PEM certificate with its chain and its own unencrypted key"
                raise bad_request("tls", f"{self.certificate} and {self.key}: {right}") from None


def bearer(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that carries a key. BadRequestError, without the key, for one that no header can carry."""
    if api_key is None:
        return ()
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise bad_request("api_key", "must be printable ASCII characters")
    return (("authorization", f"Bearer {key}"),)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise bad_request("tls", f"{path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:  # a disk, or /dev/zero
        raise bad_request("tls", f"{path}: is larger than {_MAX_BYTES} bytes")
    return data
