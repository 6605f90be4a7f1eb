"""Certificates made on the spot, and the files that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from service.client import Tls


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates. `ca` is its own, as a file."""

    signer: trustme.CA
    ca: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Authority:
        signer = trustme.CA()
        ca = folder / f"{name}.pem"
        signer.cert_pem.write_to_path(ca)
        return cls(signer, ca)

    def issue(self, folder: Path, name: str, *identities: str) -> tuple[Path, Path]:
        """Files of a certificate for `identities` and of its key; those before are written over."""
        made = self.signer.issue_cert(*identities)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return certificate, key

    def trusted(self, certificate: Path | None = None, key: Path | None = None) -> Tls:
        """What a client needs to trust this authority's servers."""
        return Tls(self.ca, certificate, key)
