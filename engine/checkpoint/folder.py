"""A folder in Hugging Face layout as a checkpoint. Only JSON, Jinja text and safetensors are ever read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.architecture import Architecture
from engine.checkpoint.digest import sampled_digest
from engine.checkpoint.folder_config import Options, read_architecture, read_defaults
from engine.checkpoint.folder_files import read_options, read_text
from engine.checkpoint.layout import check_layout
from engine.checkpoint.shards import BUFFER_DTYPES, DTYPES, FolderTensor, stored_tensors
from engine.checkpoint.source import GenerationDefaults, JsonTokenizer, StoredTensor
from engine.errors import CheckpointError, UnsupportedModelError

_MAX_TEMPLATE_BYTES = 1 << 20
# Read pages of a mapped file count as ours until the mapping goes, so it goes after this much.
_MAPPED_BYTES = 512 << 20


def open_folder(folder: Path, name: str | None = None) -> FolderCheckpoint:
    """Read the headers and configuration of the native model in `folder` and check them.

    Raises CheckpointError; NotNativeError where the folder may be sound and another decoder is described.
    """
    config = _config(folder)
    architecture = read_architecture(config)
    stored = stored_tensors(folder, DTYPES)
    check_layout(str(folder), architecture, {tensor.name: tensor.shape for tensor in stored})
    words = _read_words(folder, config)
    return FolderCheckpoint(
        name=name or folder.resolve().name,
        architecture=architecture,
        tokenizer=words.tokenizer,
        chat_template=words.chat_template,
        defaults=words.defaults,
        folder=folder,
        stored=stored,
    )


def open_generic_folder(folder: Path, why: str, name: str | None = None) -> GenericFolder:
    """Read the headers and words of a model that is not native, for the reason `why`. Raises CheckpointError."""
    config = _config(folder)
    for key in ("quantization_config", "compression_config"):
        if config.values.get(key) is not None:
            raise UnsupportedModelError(f"{config.where}: the option {key} is set; quantised folders are not served")
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(f"{folder}: adapter_config.json makes it an adapter; merge it into its model first")
    stored = stored_tensors(folder, DTYPES | BUFFER_DTYPES)
    words = _read_words(folder, config)
    return GenericFolder(
        name=name or folder.resolve().name,
        why=why,
        tokenizer=words.tokenizer,
        chat_template=words.chat_template,
        defaults=words.defaults,
        folder=folder,
        stored=stored,
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """What a folder says beside the decoder."""

    tokenizer: JsonTokenizer
    chat_template: str | None
    defaults: GenerationDefaults


def _read_words(folder: Path, config: Options) -> _Words:
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder}: there is no tokenizer.json; other tokenizer files are not read")
    tokenizer_config = read_options(folder / "tokenizer_config.json")
    generation_path = folder / "generation_config.json"
    return _Words(
        tokenizer=JsonTokenizer(folder / "tokenizer.json", {} if tokenizer_config is None else tokenizer_config.values),
        chat_template=_chat_template(folder, tokenizer_config),
        defaults=read_defaults(config, read_options(generation_path) or Options(str(generation_path), {})),
    )


def _config(folder: Path) -> Options:
    config = read_options(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder}: there is no config.json, so this is no model folder in Hugging Face layout")
    return config


def _chat_template(folder: Path, tokenizer_config: Options | None) -> str | None:
    """The template from its own file, else from the tokenizer's configuration: a string, or the `default` of a list."""
    own = read_text(folder / "chat_template.jinja", _MAX_TEMPLATE_BYTES)
    if own is not None:
        return own
    old = read_options(folder / "chat_template.json")
    for options in (old, tokenizer_config):
        value: Any = None if options is None else options.values.get("chat_template")
        if type(value) is list:
            named = [item for item in value if type(item) is dict and item.get("name") == "default"]
            value = named[0].get("template") if named else None
            if value is None:
                raise CheckpointError(f"{folder}: chat_template is a list without one of the name default")
        if value is not None and (type(value) is not str or len(value) > _MAX_TEMPLATE_BYTES):
            raise CheckpointError(
                f"{folder}: chat_template must be a string of at most {_MAX_TEMPLATE_BYTES} characters"
            )
        if value is not None:
            return str(value)
    return None


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A checked folder. See `Checkpoint` for what the names mean."""

    name: str
    architecture: Architecture
    tokenizer: JsonTokenizer
    chat_template: str | None
    defaults: GenerationDefaults
    folder: Path
    stored: tuple[FolderTensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the matrices where they are all alike; else float32."""
        kinds = {tensor.dtype for tensor in self.stored if len(tensor.shape) > 1}
        return kinds.pop() if len(kinds) == 1 else torch.float32

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor.stored_bytes for tensor in self.stored)

    def digest(self) -> str:
        """See `sampled_digest`."""
        return sampled_digest(dict.fromkeys(tensor.shard for tensor in self.stored), self.architecture)

    def tensors(self) -> Iterator[StoredTensor]:
        """Vectors of all shards first, then matrices, shard by shard."""
        ordered = sorted(self.stored, key=lambda tensor: len(tensor.shape) > 1)
        start = 0
        while start < len(ordered):
            shard, end, mapped = ordered[start].shard, start, 0
            while end < len(ordered) and ordered[end].shard == shard and (end == start or mapped < _MAPPED_BYTES):
                mapped += ordered[end].stored_bytes
                end += 1
            yield from _read_run(shard, ordered[start:end])
            start = end


@dataclass(frozen=True, slots=True)
class GenericFolder:
    """A folder whose decoder is not native, for the reason `why`; transformers may play it. Its headers are sound.

    The other names mean what they mean in `Checkpoint`.
    """

    name: str
    why: str
    tokenizer: JsonTokenizer
    chat_template: str | None
    defaults: GenerationDefaults
    folder: Path
    stored: tuple[FolderTensor, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor.stored_bytes for tensor in self.stored)

    def digest(self) -> str:
        """See `sampled_digest`; the configuration is in it whole."""
        config = (self.folder / "config.json").read_text(encoding="utf-8")
        return sampled_digest(dict.fromkeys(tensor.shard for tensor in self.stored), config)


def _read_run(shard: Path, run: list[FolderTensor]) -> Iterator[StoredTensor]:
    """A run of tensors of one shard, under one mapping of it."""
    try:
        with safe_open(shard, framework="pt") as file:
            for tensor in run:
                yield StoredTensor(tensor.name, file.get_tensor(tensor.name), tensor.stored_bytes)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard}: cannot be read: {ascii(str(error))[:120]}") from error
