"""The safetensors files of a model folder: which they are, and what their headers say. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.checkpoint.folder_config import Options
from engine.checkpoint.folder_files import read_options
from engine.errors import CheckpointError, UnsupportedModelError

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_SENTENCE = "is a pickle, which can run code when it is opened; only safetensors and GGUF files are read"

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HEADER_LENGTH_BYTES = 8  # what a safetensors file begins with
# Old exporters saved masks and positions beside the weights.
BUFFER_DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I32": torch.int32, "I64": torch.int64}


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


def stored_tensors(folder: Path, dtypes: Mapping[str, torch.dtype]) -> tuple[FolderTensor, ...]:
    """The headers of every shard."""
    stored = tuple(tensor for shard in _shards(folder) for tensor in _read_shard(shard, dtypes))
    seen: set[str] = set()
    for tensor in stored:
        if tensor.name in seen:
            raise CheckpointError(f"{tensor.shard}: the tensor {tensor.name!a} is in another shard too")
        seen.add(tensor.name)
    return stored


def _shards(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the model."""
    index_path = folder / "model.safetensors.index.json"
    index = read_options(index_path)
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


def _read_shard(shard: Path, dtypes: Mapping[str, torch.dtype]) -> list[FolderTensor]:
    """The header of one shard, whose tensors have one of `dtypes`."""
    tensors = []
    try:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                piece = file.get_slice(name)
                stored = piece.get_dtype()
                if stored not in dtypes:
                    raise UnsupportedModelError(
                        f"{shard}: the tensor {ascii(name)[:120]} has the type {stored}; read are {', '.join(dtypes)}"
                    )
                tensors.append(FolderTensor(name, shard, tuple(piece.get_shape()), dtypes[stored]))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard}: is no sound safetensors file: {ascii(str(error))[:120]}") from error
    return tensors


def data_places(shard: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each tensor lie in the file: offset and count. Its header was found sound before."""
    with shard.open("rb") as file:
        header_bytes = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        header = json.loads(file.read(header_bytes))
    data_start = HEADER_LENGTH_BYTES + header_bytes
    places = {name: facts["data_offsets"] for name, facts in header.items() if name != "__metadata__"}
    return {name: (data_start + start, end - start) for name, (start, end) in places.items()}
