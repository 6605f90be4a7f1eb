"""What the engine needs to know to read a model from an S3 bucket, and which names are such models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.events import Listener, ignore

SCHEME = "s3://"
_DEFAULTS = EngineConfig()


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Attributes:
    endpoint: address of an S3-compatible server, such as http://minio:9000; None is what the AWS settings say.
    cache: folder that objects are downloaded to, and found in at the next start; None streams them to the device.
    buffer_bytes: host memory that a stream may fill at once.
    listener: hears how a download goes on.
    """

    endpoint: str | None = None
    cache: Path | None = None
    buffer_bytes: int = _DEFAULTS.stream_buffer_bytes
    listener: Listener = ignore


NO_OPTIONS = RemoteOptions()


def is_remote(model: str) -> bool:
    """Whether `model` is an address in a bucket."""
    return model.startswith(SCHEME)
