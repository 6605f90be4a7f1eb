"""A bucket of the emulated S3 with tiny models in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint import RemoteOptions
from tests.aws_emulator import AwsAccount


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of an account of its own."""

    name: str
    account: AwsAccount
    client: Any

    def upload(self, source: Path, key: str, *, sums: bool = False) -> str:
        """Put a file at `key`, or a folder's files below it, with their SHA256SUMS where asked for. The address."""
        files = {f"{key}/{path.name}": path for path in source.iterdir()} if source.is_dir() else {key: source}
        for name, path in files.items():
            self.put(name, path.read_bytes())
        if sums:
            folder = key if source.is_dir() else key.rpartition("/")[0]
            lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files.values()]
            self.put(f"{folder}/SHA256SUMS", "\n".join(lines).encode())
        return f"s3://{self.name}/{key}"

    def put(self, key: str, body: bytes) -> None:
        """Put one object."""
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def flip(self, key: str) -> None:
        """Change one bit near the end of an object."""
        body = bytearray(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())
        body[-100] ^= 1
        self.put(key, bytes(body))

    def options(self, cache: Path | None = None, endpoint: str | None = None, **more: Any) -> RemoteOptions:
        """How to read from it: `endpoint` may be that of a proxy."""
        return RemoteOptions(endpoint or self.account.url, cache, **more)
