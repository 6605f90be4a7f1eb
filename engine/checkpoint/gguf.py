"""A GGUF file as a checkpoint: canonical names, half-split rotary order, float32 out of quantised blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.architecture import Architecture
from engine.checkpoint.blocks import DEQUANTISERS
from engine.checkpoint.digest import sampled_digest
from engine.checkpoint.gguf_header import GgufTensor, quoted, read_header
from engine.checkpoint.gguf_metadata import Metadata, read_architecture, read_defaults, read_tokenizer
from engine.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, check_layout
from engine.checkpoint.source import GenerationDefaults, GgufTokenizer, StoredBlocks, StoredTensor
from engine.errors import CheckpointError

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CHUNK_ITEMS = 1 << 21
ROPE_FACTORS = "rope_freqs.weight"
_OUTER = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")


def canonical_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; the name itself where there is none, for the layout check to refuse."""
    if name in _OUTER:
        return _OUTER[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _INNER:
        return name
    return f"model.layers.{int(match[1])}.{_INNER[match[2]]}.{match[3]}"


def half_split(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows `[heads * head_dim, ...]` from interleaved rotary order (pairs side by side) to half-split order."""
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _interleaved_heads(architecture: Architecture, name: str) -> int | None:
    """How many heads a matrix's rows make where rotation concerns them."""
    if name.endswith("q_proj.weight"):
        return architecture.heads
    return architecture.kv_heads if name.endswith("k_proj.weight") else None


def open_gguf(path: Path, name: str | None = None) -> GgufCheckpoint:
    """Read the header of the GGUF file at `path` and check it through. Raises CheckpointError in one line."""
    header = read_header(path)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: the tensor token_embd.weight is missing")
    metadata = Metadata(str(path), header.metadata)
    rope_tensor = tensors.get(ROPE_FACTORS)
    architecture = read_architecture(
        metadata,
        vocabulary=embedding.shape[0],
        tied_head="output.weight" not in tensors,
        factors=None if rope_tensor is None else _rope_factors(path, rope_tensor),
    )
    if rope_tensor is not None and rope_tensor.shape != (architecture.head_dim // 2,):
        raise CheckpointError(
            f"{path}: the tensor {ROPE_FACTORS} has the shape {list(rope_tensor.shape)}; "
            f"the head size asks for [{architecture.head_dim // 2}]"
        )
    stored = tuple(tensor for tensor in header.tensors if tensor.name != ROPE_FACTORS)
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in stored:
        canonical = canonical_name(tensor.name)
        if canonical in shapes:
            raise CheckpointError(
                f"{path}: the tensor {quoted(tensor.name)} stands for {canonical}, which is there already"
            )
        shapes[canonical] = tensor.shape
    check_layout(str(path), architecture, shapes)
    tokenizer = read_tokenizer(metadata, architecture.vocabulary)
    return GgufCheckpoint(
        name=name or path.stem,
        architecture=architecture,
        tokenizer=tokenizer,
        chat_template=metadata.optional_text("tokenizer.chat_template"),
        defaults=read_defaults(metadata, tokenizer),
        path=path,
        stored=stored,
    )


def _rope_factors(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 12:
        raise CheckpointError(f"{path}: the tensor {ROPE_FACTORS} is no short row of F32")
    return tuple(_read(path, tensor)[0].tolist())


def _read(path: Path, tensor: GgufTensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tensor's values, and as bytes `[rows, bytes a row]` where it is a matrix in blocks.

    Read rather than mapped: pages of a mapping would count as ours until it is dropped.
    """
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.offset)
            return decode(tensor, lambda target: _fill(file.readinto, target, path, tensor.name))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def decode(tensor: GgufTensor, fill: Callable[[torch.Tensor], None]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values of a tensor, and its blocks, from stored bytes: each `fill` writes the next ones over its argument."""
    plain = _PLAIN.get(tensor.type.name)
    out = torch.empty(tensor.shape, dtype=plain or torch.float32)
    if plain is not None:
        fill(out.view(-1).view(torch.uint8))
        return out, None
    block = tensor.type
    dequantise, flat = DEQUANTISERS[block.name], out.view(-1, block.items)
    raw = torch.empty((flat.shape[0], block.stored_bytes), dtype=torch.uint8)
    for part, piece in zip(*(t.split(_CHUNK_ITEMS // block.items) for t in (flat, raw)), strict=True):
        fill(piece.view(-1))
        part.copy_(dequantise(piece))
    return out, raw.view(tensor.shape[0], -1)


def _fill(readinto: Callable[[memoryview], int | None], target: torch.Tensor, path: Path, name: str) -> None:
    view = memoryview(target.numpy().data)
    while view:
        got = readinto(view)
        if not got:
            raise CheckpointError(
                f"{path}: ended inside the tensor {quoted(name)}; the file has changed since it was opened"
            )
        view = view[got:]


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A checked GGUF file. See `Checkpoint` for what the names mean."""

    name: str
    architecture: Architecture
    tokenizer: GgufTokenizer
    chat_template: str | None
    defaults: GenerationDefaults
    path: Path
    stored: tuple[GgufTensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the matrices where they are all plain and alike; else float32."""
        kinds = self.matrix_types
        return _PLAIN.get(next(iter(kinds)), torch.float32) if len(kinds) == 1 else torch.float32

    @property
    def matrix_types(self) -> frozenset[str]:
        """GGUF types of the matrices."""
        return frozenset(tensor.type.name for tensor in self.stored if len(tensor.shape) > 1)

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor.stored_bytes for tensor in self.stored)

    def digest(self) -> str:
        """See `sampled_digest`."""
        return sampled_digest((self.path,), self.architecture)

    def tensors(self) -> Iterator[StoredTensor]:
        """Vectors first, then matrices, each in file order."""
        for tensor in sorted(self.stored, key=lambda tensor: len(tensor.shape) > 1):
            yield self._in_canonical_order(tensor, *_read(self.path, tensor))

    def _in_canonical_order(self, tensor: GgufTensor, data: torch.Tensor, raw: torch.Tensor | None) -> StoredTensor:
        """Canonical name, half-split rows."""
        name = canonical_name(tensor.name)
        # Only `llama` files store q and k in interleaved order; the converter leaves the others' alone.
        heads = _interleaved_heads(self.architecture, name) if self.architecture.family == "llama" else None
        if heads is not None:
            data, raw = half_split(data, heads), None if raw is None else half_split(raw, heads)
        blocks = None if raw is None else StoredBlocks(tensor.type.name, raw)
        return StoredTensor(name, data, tensor.stored_bytes, blocks)
