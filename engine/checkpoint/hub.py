"""Models of the Hugging Face hub, named `organisation/model` or `organisation/model@revision`."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import CheckpointError

_ID = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,96}))?")
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Second copies of the same weights under other names.
_UNWANTED = ["*/*", "consolidated*", "adapter_*"]


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form of a hub id."""
    return _ID.fullmatch(model) is not None


def fetch(model: str, *, offline: bool = False, cache: Path | None = None) -> Path:
    """The local folder of the hub's `model`, downloaded if need be; from the cache alone where `offline`.

    Where the hub cannot be reached, what is in the cache serves. Raises CheckpointError in one line.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(f"{model}: reading from the hub needs `pip install huggingface_hub`") from None
    match = _ID.fullmatch(model)
    if match is None:
        raise CheckpointError(f"{ascii(model)[:120]} is no hub id; one looks like organisation/model")
    try:
        folder = snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            cache_dir=cache,
            local_files_only=offline,
        )
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{model}: the hub cannot be reached and the model is not in the local cache; give the path of a folder"
        ) from None
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{model}: the hub has no such model, or not for this account ({ascii(reason[0] if reason else '')[:160]})"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{model}: the hub cannot be read: {ascii(str(error))[:160]}") from error
    return Path(folder)
