"""Settings of the kernels by shape and device: measured where there is a measurement, else a formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["qkv", "out", "gate_up", "down", "head"]

_VECTOR_BYTES = 16
_WARP = 32


@dataclass(frozen=True, slots=True)
class RowSetting:
    """How a product of matrix rows is cut up.

    rows: matrix rows a block (of each half, for gate_up). warps: warps a block.
    resident: blocks of a multiprocessor in a grid that stays; 0 is a block for each `rows`. buffers: of a block that
    stays, row blocks in registers. registers: most registers a thread, 0 for the compiler's choice.
    """

    rows: int
    warps: int
    resident: int = 0
    buffers: int = 2
    registers: int = 0

    def grid(self, n: int, processors: int) -> tuple[int]:
        """Blocks of a launch over n rows."""
        blocks = -(-n // self.rows)
        return (min(blocks, self.resident * processors) if self.resident else blocks,)

    def tile(self, element_bytes: int) -> int:
        """Columns that a block holds at once: 16 bytes of a row in each thread."""
        return _WARP * self.warps * (_VECTOR_BYTES // element_bytes)


@dataclass(frozen=True, slots=True)
class AttendSetting:
    """How attention is cut up.

    tile: positions at once in a short context. warps: warps a block. single: the longest context that is short.
    split_tile: positions at once in a split of a long one. splits: most splits.
    """

    tile: int
    warps: int
    single: int
    split_tile: int
    splits: int

    def lanes(self, padded_dim: int, element_bytes: int) -> int:
        """Positions that a block holds at once, 16 bytes of a head in each thread."""
        return min(self.tile, max(1, _WARP * self.warps * (_VECTOR_BYTES // element_bytes) // padded_dim))


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of one device class.

    rows: by (kernel, N, K). attend: by (heads, kv_heads, head_dim). norm_apart: widths whose norm is a kernel of its
    own, before the product.
    """

    rows: dict[tuple[Kernel, int, int], RowSetting]
    attend: dict[tuple[int, int, int], AttendSetting]
    norm_apart: frozenset[int]

    def row_setting(self, kernel: Kernel, n: int, k: int) -> RowSetting:
        """The measured setting of a matrix `[N, K]`, or the formula's."""
        return self.rows.get((kernel, n, k)) or row_formula(n // 2 if kernel == "gate_up" else n, k)

    def attend_setting(self, heads: int, kv_heads: int, head_dim: int) -> AttendSetting:
        """The measured setting of a head shape, or the formula's."""
        return self.attend.get((heads, kv_heads, head_dim)) or attend_formula(kv_heads, head_dim)


def row_formula(n: int, k: int) -> RowSetting:
    """About 16 KiB of bf16 weights a block and 64 weights a thread, but enough blocks for every multiprocessor."""
    rows = 1
    while rows < 8 and rows * 2 * k <= 8192 and n >= rows * 2 * 264:
        rows *= 2
    warps = 1
    while warps < 16 and rows * k > warps * _WARP * 96:
        warps *= 2
    return RowSetting(rows, warps)


def attend_formula(kv_heads: int, head_dim: int) -> AttendSetting:
    """Enough splits of a long context for every multiprocessor; keys and values of a tile in 64 registers a thread."""
    splits = 8
    while splits < 64 and splits * kv_heads < 256:
        splits *= 2
    return AttendSetting(tile=64, warps=4 if head_dim <= 64 else 8, single=256, split_tile=64, splits=splits)


_H200 = Tuning(
    rows={
        # Llama-2-7B
        ("qkv", 12288, 4096): RowSetting(2, 8),
        ("down", 4096, 11008): RowSetting(2, 16),
        # Llama-3.1-8B
        ("gate_up", 28672, 4096): RowSetting(1, 4),
        # Llama-3.2-1B
        ("qkv", 3072, 2048): RowSetting(2, 2),
        ("out", 2048, 2048): RowSetting(8, 8, resident=2, buffers=1, registers=128),
        ("gate_up", 16384, 2048): RowSetting(1, 2),
        ("down", 2048, 8192): RowSetting(1, 8),
        ("head", 128256, 2048): RowSetting(8, 8),
        # SmolLM2-135M
        ("qkv", 960, 576): RowSetting(8, 4),
        ("out", 576, 576): RowSetting(2, 2),
        ("gate_up", 3072, 576): RowSetting(4, 1),
        ("down", 576, 1536): RowSetting(4, 8),
        ("head", 49152, 576): RowSetting(8, 1),
    },
    attend={
        (32, 8, 128): AttendSetting(tile=64, warps=8, single=256, split_tile=64, splits=16),
    },
    norm_apart=frozenset(),
)
_OTHER = Tuning(rows={}, attend={}, norm_apart=frozenset())


def tuning_for(device_name: str) -> Tuning:
    """The table of a device, by the name that CUDA gives it."""
    return _H200 if "H200" in device_name or "H100" in device_name else _OTHER
