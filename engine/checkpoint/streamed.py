"""A model in a bucket as a checkpoint: headers now, weights from the network to the device, nothing large on a disk.

What is read at first is laid into a skeleton: a folder of files in their full sizes, with headers and words in place
and holes where the weights would be. So the same readers and the same checks serve it as serve a local model, and only
the tensors' bytes come from elsewhere.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.digest import check_pin_form, lines_sha256, sampled_windows, windows_digest
from engine.checkpoint.folder import FolderCheckpoint, open_folder
from engine.checkpoint.folder_config import NotNativeError
from engine.checkpoint.gguf import ROPE_FACTORS, GgufCheckpoint, decode, open_gguf
from engine.checkpoint.gguf_header import MAX_HEADER_BYTES, read_header
from engine.checkpoint.remote import RemoteOptions
from engine.checkpoint.run_ai import Span, Streamer
from engine.checkpoint.s3 import SUMS, WORD_SUFFIXES, Address, RemoteObject, Store
from engine.checkpoint.shards import HEADER_LENGTH_BYTES, data_places
from engine.checkpoint.source import StoredTensor
from engine.checkpoint.sums import MAX_SUMS_BYTES, check_sum, read_sums, wanted_sum
from engine.errors import CheckpointError

_FIRST_BYTES = 1 << 20
_MAX_WORDS_BYTES = 64 << 20
_GGUF_STEPS = (8 << 20, MAX_HEADER_BYTES)
_GAP_BYTES = 64 << 20  # what lies between tensors and is no tensor comes in such parts


@dataclass(frozen=True, slots=True)
class Place(Span):
    """Where a tensor's bytes lie in its object."""

    name: str
    vector: bool


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a streamed checkpoint's bytes come from, and what they should be.

    Attributes:
        skeleton: goes with the checkpoint.
        objects: by name.
        sums: digest of each object, from SHA256SUMS; None where there is none.
        pin: digest of the whole, as for a local file or folder; None where there is none.
        words: digests of the objects that were read whole.
    """

    store: Store
    streamer: Streamer
    skeleton: tempfile.TemporaryDirectory[str]
    objects: Mapping[str, RemoteObject]
    sums: Mapping[str, str] | None
    pin: str | None
    words: Mapping[str, str]

    @property
    def checked(self) -> bool:
        """Whether every byte is needed, because a digest is."""
        return self.sums is not None or self.pin is not None

    def sampled(self, names: Sequence[str], facts: object) -> str:
        """As `sampled_digest` of the local files would be."""

        def windows(item: RemoteObject) -> tuple[int, list[bytes]]:
            spans = [Span(start, size) for start, size in sampled_windows(item.size)]
            return item.size, [part.numpy().tobytes() for part in self.streamer.spans(item, spans)]

        return windows_digest((windows(self.objects[name]) for name in names), facts)

    def vectors_first(self, places: Mapping[str, Sequence[Place]]) -> Iterator[tuple[str, Tensor]]:
        """Name and bytes of every tensor: those that are vectors from all objects first, then the rest, in file order.

        Vectors are small, and are read twice where digests are due, since a digest takes every byte in order.
        Raises CheckpointError, after its last tensor, for an object that is not what it should be.
        """
        for name, tensors in places.items():
            vectors = [tensor for tensor in tensors if tensor.vector]
            for tensor, data in zip(vectors, self._bytes(name, vectors), strict=True):
                yield tensor.name, data
        digests: dict[str, str] = {}
        for name, tensors in places.items():
            matrices = sorted((tensor for tensor in tensors if not tensor.vector), key=lambda tensor: tensor.offset)
            yield from self._checked(name, matrices, digests) if self.checked else self._plain(name, matrices)
            self.store.check_unchanged(self.objects[name])
        if self.pin is not None:
            self._check_pin(digests, self.pin)

    def _bytes(self, name: str, spans: Sequence[Span]) -> Iterator[Tensor]:
        return self.streamer.spans(self.objects[name], spans)

    def _plain(self, name: str, matrices: Sequence[Place]) -> Iterator[tuple[str, Tensor]]:
        for tensor, data in zip(matrices, self._bytes(name, matrices), strict=True):
            yield tensor.name, data

    def _checked(self, name: str, matrices: Sequence[Place], digests: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
        """As `_plain`, with what lies between the tensors, and its digest into `digests`."""
        parts = _without_gaps(matrices, self.objects[name].size)
        digest = hashlib.sha256()
        for part, data in zip(parts, self._bytes(name, parts), strict=True):
            digest.update(data.numpy().data)
            if isinstance(part, Place):
                yield part.name, data
        digests[name] = digest.hexdigest()
        where = self.store.where(self.objects[name])
        check_sum(where, digests[name], wanted_sum(self.sums, name, where))

    def _check_pin(self, digests: Mapping[str, str], pin: str) -> None:
        if self.store.address.is_file:
            (found,) = digests.values()
        else:
            found = lines_sha256({**digests, **self.words})
        if found != pin.lower():
            raise CheckpointError(f"{self.store.address}: its sha256 is {found}; the pin asks for {pin.lower()}")


def _without_gaps(places: Sequence[Place], size: int) -> list[Span]:
    """`places`, in file order, with spans between and around them, so that all is the whole of `size` bytes."""
    parts: list[Span] = []
    at = 0
    for place in (*places, Span(size, 0)):
        parts.extend(
            Span(start, min(_GAP_BYTES, place.offset - start)) for start in range(at, place.offset, _GAP_BYTES)
        )
        parts.append(place)
        at = place.offset + place.size
    return parts[:-1]


@dataclass(frozen=True, slots=True)
class StreamedFolder(FolderCheckpoint):
    """A folder whose tensors come from `remote`; `folder` is its skeleton."""

    remote: Remote

    def digest(self) -> str:
        """As of the same folder on a disk."""
        return self.remote.sampled(list(dict.fromkeys(tensor.shard.name for tensor in self.stored)), self.architecture)

    def tensors(self) -> Iterator[StoredTensor]:
        """Vectors of all shards first, then matrices, shard by shard."""
        places: dict[str, list[Place]] = {}
        for tensor in self.stored:
            where = data_places(tensor.shard)[tensor.name]
            places.setdefault(tensor.shard.name, []).append(Place(*where, tensor.name, len(tensor.shape) < 2))
        facts = {tensor.name: tensor for tensor in self.stored}
        for name, data in self.remote.vectors_first(places):
            tensor = facts[name]
            yield StoredTensor(name, _typed(data, tensor.dtype).view(tensor.shape), tensor.stored_bytes)


def _typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as items of `dtype`, copied where they do not lie as such items must."""
    return (data.clone() if data.data_ptr() % dtype.itemsize else data).view(dtype)


@dataclass(frozen=True, slots=True)
class StreamedGguf(GgufCheckpoint):
    """A GGUF object whose tensors come from `remote`; `path` is its skeleton."""

    remote: Remote

    def digest(self) -> str:
        """As of the same file on a disk."""
        return self.remote.sampled([self.path.name], self.architecture)

    def tensors(self) -> Iterator[StoredTensor]:
        """Vectors first, then matrices, each in file order."""
        facts = {tensor.name: tensor for tensor in self.stored}
        places = [Place(t.offset, t.stored_bytes, t.name, len(t.shape) < 2) for t in self.stored]
        for name, data in self.remote.vectors_first({self.path.name: places}):
            yield self._in_canonical_order(facts[name], *decode(facts[name], _Cursor(data).fill))


class _Cursor:
    """Hands out bytes front to back."""

    def __init__(self, data: Tensor) -> None:
        self._left = data

    def fill(self, target: Tensor) -> None:
        target.copy_(self._left[: target.numel()])
        self._left = self._left[target.numel() :]


def open_streamed(model: str, pin: str | None, options: RemoteOptions) -> StreamedFolder | StreamedGguf:
    """Open the address `model`: headers and words are read, and held against SHA256SUMS where there is one.

    The weights' digests, and `pin`, are checked as the weights are read, and where one is wrong the load ends.
    Raises CheckpointError in one line.
    """
    if pin is not None:
        check_pin_form(pin)
    address = Address.parse(model)
    store = Store(address, options.endpoint)
    streamer = Streamer(store, options.buffer_bytes)
    objects = store.objects()
    listed = objects.pop(SUMS, None)
    sums = None
    if listed is not None:
        sums = read_sums(store.where(listed), store.read(listed, size=min(listed.size, MAX_SUMS_BYTES)))
    skeleton = tempfile.TemporaryDirectory(prefix="soloist-")
    try:
        return _laid(Remote(store, streamer, skeleton, objects, sums, pin, {}))
    except BaseException:
        skeleton.cleanup()
        raise


def _laid(remote: Remote) -> StreamedFolder | StreamedGguf:
    """The checkpoint of `remote`, of which nothing is read yet."""
    store, objects, address = remote.store, remote.objects, remote.store.address
    folder = Path(remote.skeleton.name)
    words = {
        name: _lay_words(store, item, folder / name, remote.sums)
        for name, item in objects.items()
        if name.endswith(WORD_SUFFIXES)
    }
    remote = replace(remote, words=words)
    if address.is_file:
        path = folder / address.name
        _lay_gguf(store, objects[address.name], path)
        gguf = open_gguf(path)
        return StreamedGguf(**{field.name: getattr(gguf, field.name) for field in fields(gguf)}, remote=remote)
    for name, item in objects.items():
        if name.endswith(".safetensors"):
            _lay_shard(store, item, folder / name)
    try:
        opened = open_folder(folder, address.name)
    except NotNativeError as error:
        raise CheckpointError(f"{error}; transformers plays it from a disk: set --model-cache") from None
    unread = {name for name in objects if name.endswith(".safetensors")} - {t.shard.name for t in opened.stored}
    if remote.pin is not None and unread:
        raise CheckpointError(f"{address}: {min(unread)} is part of the pin and not of the model; remove that object")
    return StreamedFolder(**{field.name: getattr(opened, field.name) for field in fields(opened)}, remote=remote)


def _lay_words(store: Store, item: RemoteObject, path: Path, sums: Mapping[str, str] | None) -> str:
    """A JSON or Jinja object, whole; its digest."""
    where = store.where(item)
    if item.size > _MAX_WORDS_BYTES:
        raise CheckpointError(f"{where}: has {item.size} bytes; at most {_MAX_WORDS_BYTES} are read")
    data = store.read(item)
    digest = hashlib.sha256(data).hexdigest()
    check_sum(where, digest, wanted_sum(sums, item.name, where))
    path.write_bytes(data)
    return digest


def _lay_shard(store: Store, item: RemoteObject, path: Path) -> None:
    """A safetensors object of which only the header is there."""
    first = store.read(item, size=min(item.size, _FIRST_BYTES))
    header_end = HEADER_LENGTH_BYTES + int.from_bytes(first[:HEADER_LENGTH_BYTES], "little")
    if header_end > min(item.size, MAX_HEADER_BYTES):
        raise CheckpointError(f"{store.where(item)}: is no sound safetensors file: its header has no end")
    with path.open("wb") as file:
        file.write(first[:header_end])
        file.write(store.read(item, len(first), header_end - len(first)))
        file.truncate(item.size)


def _lay_gguf(store: Store, item: RemoteObject, path: Path) -> None:
    """A GGUF object of which only the header is there, and the one small tensor that is part of the description."""
    with path.open("wb") as file:
        file.truncate(item.size)
    first, last = (min(step, item.size) for step in _GGUF_STEPS)
    _lay(store, item, path, 0, first)
    try:
        cut = read_header(path).header_bytes > first
    except CheckpointError:  # perhaps because it goes on where nothing is laid yet
        cut = first < last
        if not cut:
            raise
    if cut:
        _lay(store, item, path, first, last - first)
    for tensor in read_header(path).tensors:
        if tensor.name == ROPE_FACTORS and tensor.stored_bytes <= _FIRST_BYTES:
            _lay(store, item, path, tensor.offset, tensor.stored_bytes)


def _lay(store: Store, item: RemoteObject, path: Path, start: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(store.read(item, start, size))
