"""Text and JSON files of a model folder, with bounds on their size."""

from __future__ import annotations

import json
from pathlib import Path

from engine.checkpoint.folder_config import Options
from engine.errors import CheckpointError

_MAX_JSON_BYTES = 32 << 20


def read_options(path: Path) -> Options | None:
    """The JSON object in `path`, or None where there is no such file."""
    text = read_text(path, _MAX_JSON_BYTES)
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON: {ascii(str(error))[:120]}") from None
    if type(values) is not dict:
        raise CheckpointError(f"{path}: holds no JSON object")
    return Options(str(path), values)


def read_text(path: Path, cap: int) -> str | None:
    """The text of `path`, or None where there is no such file."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(cap + 1)
        if len(raw) > cap:
            raise CheckpointError(f"{path}: is larger than {cap} bytes")
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: is not UTF-8") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
