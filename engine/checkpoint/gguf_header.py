"""The header of a GGUF file, walked over a mapping of it. Nothing in the file is believed before it is checked.

Every count and length is held against both a fixed cap and the bytes that are left in the file, before anything is
allocated for it. So the work is bounded by the caps, whatever the file says: a million strings, a million numbers.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import CheckpointError, UnsupportedModelError

MAX_KEYS = 4096
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 256
MAX_TEXT_BYTES = 1 << 20
# In all arrays together; the largest vocabularies of the families served take under 900,000.
MAX_STRINGS = 1 << 20
MAX_NUMBERS = 1 << 20
# Published headers take up to 15 MB.
MAX_HEADER_BYTES = 64 << 20
MAX_DIMENSIONS = 4

_MAGIC = b"GGUF"
_HEAD = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a tensor type stores its elements: `items` elements in `stored_bytes` bytes."""

    name: str
    items: int
    stored_bytes: int


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is. `shape` is in row-major order, outermost first; `offset` is from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are bool, int, float, str, or a tuple of one of them."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    header_bytes: int


def quoted(text: str) -> str:
    """`text` of an untrusted file, on one line and short, for an error message."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the GGUF file at `path`. Raises CheckpointError in one line."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < _HEAD.size:
                raise CheckpointError(f"{path}: {size} bytes are too few for a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _Walk(path, mapped, size).header()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


class _Walk:
    """One pass over the header, front to back."""

    def __init__(self, path: Path, mapped: mmap.mmap, size: int) -> None:
        self._path = path
        self._mapped = mapped
        self._size = size
        self._end = min(size, MAX_HEADER_BYTES)
        self._at = 0
        self._strings = 0
        self._numbers_read = 0

    def header(self) -> GgufHeader:
        magic, version, tensor_count, key_count = _HEAD.unpack_from(self._mapped, 0)
        if magic != _MAGIC:
            raise self._error("does not begin with GGUF: this is no GGUF file")
        if version not in {2, 3}:
            raise UnsupportedModelError(f"{self._path}: GGUF version {version} is not read; little-endian 2 and 3 are")
        if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
            raise self._error(
                f"claims {tensor_count} tensors and {key_count} keys; at most {MAX_TENSORS} and {MAX_KEYS} are read"
            )
        self._at = _HEAD.size
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._text(MAX_NAME_BYTES, "a key")
            if key in metadata:
                raise self._error(f"holds the key {quoted(key)} twice")
            metadata[key] = self._value(key)
        rough = [self._tensor_info() for _ in range(tensor_count)]
        return GgufHeader(metadata, self._placed(rough, metadata), self._at)

    def _error(self, sentence: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {sentence}")

    def _cut(self, what: str, count: int) -> CheckpointError:
        if self._end < self._size:
            return self._error(f"has a header of more than {MAX_HEADER_BYTES} bytes, which is not read")
        return self._error(f"ends inside {what}: {count} bytes are claimed and {self._end - self._at} are left")

    def _take(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they begin."""
        start = self._at
        if count > self._end - start:
            raise self._cut(what, count)
        self._at = start + count
        return start

    def _u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._mapped, self._take(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._mapped, self._take(8, what))[0])

    def _text(self, cap: int, what: str) -> str:
        length = self._u64(what)
        if length > cap:
            raise self._error(f"claims {length} bytes for {what}; at most {cap} are read")
        start = self._take(length, what)
        try:
            return self._mapped[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"holds {what} that is not UTF-8, at byte {start}") from None

    def _value(self, key: str) -> Any:
        what = f"the value of {quoted(key)}"
        kind = self._u32(what)
        if kind == _STRING:
            return self._text(MAX_TEXT_BYTES, what)
        if kind != _ARRAY:
            return self._numbers(kind, 1, what)[0]
        item_kind, count = self._u32(what), self._u64(what)
        if item_kind == _STRING:
            self._strings += count
        else:
            self._numbers_read += count
        if self._strings > MAX_STRINGS or self._numbers_read > MAX_NUMBERS:
            raise self._error(
                f"claims {count} items for {what}; {MAX_STRINGS} strings and {MAX_NUMBERS} numbers in all are read"
            )
        return self._texts(count, what) if item_kind == _STRING else self._numbers(item_kind, count, what)

    def _numbers(self, kind: int, count: int, what: str) -> tuple[Any, ...]:
        if kind == _ARRAY:
            raise self._error(f"nests an array in {what}; arrays of arrays are not read")
        if kind not in _SCALARS:
            raise self._error(f"gives {what} the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        start = self._take(count * dtype.itemsize, what)
        raw = self._mapped[start : self._at]
        if kind == _BOOL:
            return tuple(byte != 0 for byte in raw)
        values = np.frombuffer(raw, dtype)
        if kind == 6:
            # The shortest decimal of a float32, so that 1e-05 in the file is 1e-05 here.
            return tuple(float(str(value)) for value in values) if count < 64 else tuple(values.tolist())
        return tuple(values.tolist())

    def _texts(self, count: int, what: str) -> tuple[str, ...]:
        # The hot loop: a vocabulary and its merges are some hundred thousand strings, so nothing here is called twice.
        if count * 8 > self._end - self._at:
            raise self._cut(what, count * 8)
        mapped, end, at, unpack = self._mapped, self._end, self._at, _U64.unpack_from
        texts: list[str] = []
        append = texts.append
        try:
            for _ in range(count):
                (length,) = unpack(mapped, at)
                start = at + 8
                at = start + length
                if at > end:
                    raise self._cut(what, length)
                append(mapped[start:at].decode("utf-8"))
        except struct.error:
            raise self._error(f"ends inside {what}") from None
        except UnicodeDecodeError:
            raise self._error(f"holds a string in {what} that is not UTF-8") from None
        self._at = at
        return tuple(texts)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._text(MAX_NAME_BYTES, "a tensor name")
        what = f"the tensor {quoted(name)}"
        dimensions = self._u32(what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._error(f"gives {what} {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read")
        shape = tuple(self._u64(what) for _ in range(dimensions))[::-1]
        kind, offset = self._u32(what), self._u64(what)
        if kind not in BLOCK_TYPES:
            stored = _OTHER_TYPES.get(kind, f"of number {kind}")
            known = ", ".join(block.name for block in BLOCK_TYPES.values())
            raise UnsupportedModelError(f"{self._path}: {what} has the type {stored}; read are {known}")
        return name, shape, BLOCK_TYPES[kind], offset

    def _placed(
        self, rough: list[tuple[str, tuple[int, ...], BlockType, int]], metadata: dict[str, Any]
    ) -> tuple[GgufTensor, ...]:
        """Tensors with checked places: inside the file, aligned, apart."""
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._error("general.alignment is not a power of two from 8 to 1048576")
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, block, offset in rough:
            what = f"the tensor {quoted(name)}"
            if name in tensors:
                raise self._error(f"holds {what} twice")
            if min(shape) < 1 or shape[-1] % block.items:
                raise self._error(
                    f"gives {what} the shape {shape}; rows of {block.name} are multiples of {block.items}"
                )
            elements = 1
            for length in shape:
                elements *= length
            stored_bytes = elements // block.items * block.stored_bytes
            if offset % alignment:
                raise self._error(f"places {what} at {offset}, which is no multiple of {alignment}")
            if data_start + offset + stored_bytes > self._size:
                raise self._error(
                    f"places {what} of {stored_bytes} bytes at {data_start + offset}; the file has {self._size} bytes"
                )
            tensors[name] = GgufTensor(name, shape, block, data_start + offset, stored_bytes)
        placed = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(placed):
            if before.offset + before.stored_bytes > after.offset:
                raise self._error(f"lets the tensors {quoted(before.name)} and {quoted(after.name)} overlap")
        return tuple(placed)
