"""A folder in Hugging Face layout as a checkpoint. Only JSON, Jinja text and safetensors are ever read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.architecture import Architecture
from engine.checkpoint.digest import sampled_digest
from engine.checkpoint.folder_config import Options, read_architecture, read_defaults
from engine.checkpoint.layout import check_layout
from engine.checkpoint.source import GenerationDefaults, JsonTokenizer, StoredTensor
from engine.errors import CheckpointError, UnsupportedModelError

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_SENTENCE = "is a pickle, which can run code when it is opened; only safetensors and GGUF files are read"

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_JSON_BYTES = 32 << 20
_MAX_TEMPLATE_BYTES = 1 << 20
# Read pages of a mapped file count as ours until the mapping goes, so it goes after this much.
_MAPPED_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """Where a tensor is, from a shard's header."""

    name: str
    shard: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def open_folder(folder: Path, name: str | None = None) -> FolderCheckpoint:
    """Read the headers and configuration of the model in `folder` and check them. Raises CheckpointError."""
    config = _options(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder}: there is no config.json, so this is no model folder in Hugging Face layout")
    architecture = read_architecture(config)
    stored = tuple(tensor for shard in _shards(folder) for tensor in _read_shard(shard))
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in stored:
        if tensor.name in shapes:
            raise CheckpointError(f"{tensor.shard}: the tensor {tensor.name!a} is in another shard too")
        shapes[tensor.name] = tensor.shape
    check_layout(str(folder), architecture, shapes)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder}: there is no tokenizer.json; other tokenizer files are not read")
    tokenizer_config = _options(folder / "tokenizer_config.json")
    generation_path = folder / "generation_config.json"
    return FolderCheckpoint(
        name=name or folder.resolve().name,
        architecture=architecture,
        tokenizer=JsonTokenizer(folder / "tokenizer.json", {} if tokenizer_config is None else tokenizer_config.values),
        chat_template=_chat_template(folder, tokenizer_config),
        defaults=read_defaults(config, _options(generation_path) or Options(str(generation_path), {})),
        folder=folder,
        stored=stored,
    )


def _options(path: Path) -> Options | None:
    """The JSON object in `path`, or None where there is no such file."""
    text = _text(path, _MAX_JSON_BYTES)
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON: {ascii(str(error))[:120]}") from None
    if type(values) is not dict:
        raise CheckpointError(f"{path}: holds no JSON object")
    return Options(str(path), values)


def _text(path: Path, cap: int) -> str | None:
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


def _chat_template(folder: Path, tokenizer_config: Options | None) -> str | None:
    """The template from its own file, else from the tokenizer's configuration: a string, or the `default` of a list."""
    own = _text(folder / "chat_template.jinja", _MAX_TEMPLATE_BYTES)
    if own is not None:
        return own
    old = _options(folder / "chat_template.json")
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


def _shards(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the model."""
    index_path = folder / "model.safetensors.index.json"
    index = _options(index_path)
    if index is not None:
        return _indexed_shards(index_path, index)
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    single = folder / "model.safetensors"
    if single in files:
        return (single,)
    # Mistral ships a second copy under its own names; an adapter is no model.
    files = [path for path in files if not path.name.startswith(("consolidated", "adapter_"))]
    if len(files) == 1:
        return (files[0],)
    if files:
        raise CheckpointError(
            f"{folder}: {len(files)} safetensors files and no model.safetensors.index.json to name them"
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(f"{folder}: {pickles[0]} {PICKLE_SENTENCE}")
    raise CheckpointError(f"{folder}: there are no safetensors files")


def _indexed_shards(index_path: Path, index: Options) -> tuple[Path, ...]:
    weight_map = index.values.get("weight_map")
    if type(weight_map) is not dict or not all(type(name) is str for name in weight_map.values()):
        raise CheckpointError(f"{index_path}: weight_map must be an object of tensor names and file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or Path(name).suffix != ".safetensors":
            raise CheckpointError(f"{index_path}: {ascii(name)[:80]} is no name of a safetensors file in the folder")
        if not (index_path.parent / name).is_file():
            raise CheckpointError(f"{index_path}: names {ascii(name)[:80]}, which is not there")
    return tuple(index_path.parent / name for name in names)


def _read_shard(shard: Path) -> list[FolderTensor]:
    """The header of one shard."""
    tensors = []
    try:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                piece = file.get_slice(name)
                stored = piece.get_dtype()
                if stored not in _DTYPES:
                    raise UnsupportedModelError(
                        f"{shard}: the tensor {ascii(name)[:120]} has the type {stored}; read are {', '.join(_DTYPES)}"
                    )
                tensors.append(FolderTensor(name, shard, tuple(piece.get_shape()), _DTYPES[stored]))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard}: is no sound safetensors file: {ascii(str(error))[:120]}") from error
    return tensors


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


def _read_run(shard: Path, run: list[FolderTensor]) -> Iterator[StoredTensor]:
    """A run of tensors of one shard, under one mapping of it."""
    try:
        with safe_open(shard, framework="pt") as file:
            for tensor in run:
                yield StoredTensor(tensor.name, file.get_tensor(tensor.name), tensor.stored_bytes)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard}: cannot be read: {ascii(str(error))[:120]}") from error
