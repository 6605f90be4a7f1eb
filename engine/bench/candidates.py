"""Kernel settings worth trying for a decoder shape, kernel by kernel."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass, replace

from engine.architecture import Architecture
from engine.kernels.tuning import AttendSetting, Kernel, RowSetting, Tuning

# The kernels that multiply by a matrix, in the order in which they are looked at.
KERNELS: tuple[Kernel, ...] = ("out", "gate_up", "down", "qkv", "head")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table to try; `kernel` is what it changes, `label` how."""

    kernel: str
    label: str
    tuning: Tuning


def changes(a: Architecture, tuning: Tuning, *, long: bool = False) -> Generator[list[Candidate], Tuning, None]:
    """Groups of alternatives to `tuning`. The caller sends the best table so far and gets the group around it.

    `long` is for a step in a long context, where attention alone is worth a look.
    """
    best = tuning
    heads = (a.heads, a.kv_heads, a.head_dim)

    def rows(kernel: Kernel, settings: list[RowSetting]) -> list[Candidate]:
        key = (kernel, *matrix_of(a, kernel))
        return [Candidate(kernel, _label(s), replace(best, rows=best.rows | {key: s})) for s in settings]

    attends = attend_candidates(best.attend_setting(*heads), long=long)
    best = yield [
        Candidate("attend", _label_of_attention(s), replace(best, attend=best.attend | {heads: s})) for s in attends
    ]
    if long:
        return
    for kernel in KERNELS:
        best = yield rows(kernel, row_candidates(kernel, *matrix_of(a, kernel)))
    for kernel in KERNELS:
        best = yield rows(kernel, staying(replace(best.row_setting(kernel, *matrix_of(a, kernel)), resident=0)))
    apart = best.norm_apart ^ {a.width}
    best = yield [Candidate("norm", "apart" if a.width in apart else "fused", replace(best, norm_apart=apart))]


def matrix_of(a: Architecture, kernel: Kernel) -> tuple[int, int]:
    """Rows and columns of a kernel's matrix."""
    return {
        "qkv": (a.qkv_rows, a.width),
        "out": (a.width, a.heads * a.head_dim),
        "gate_up": (2 * a.ffn_width, a.width),
        "down": (a.width, a.ffn_width),
        "head": (a.vocabulary, a.width),
    }[kernel]


def row_candidates(kernel: Kernel, n: int, k: int) -> list[RowSetting]:
    """Settings for a matrix `[n, k]`: 16 to 130 weights a thread, and enough blocks to fill a large device."""
    found = []
    halves = 2 if kernel == "gate_up" else 1
    for rows, warps in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16)):
        per_thread = halves * rows * k / (32 * warps)
        if 16 <= per_thread <= 130 and 256 * warps <= 1.5 * k and n / (halves * rows) >= 100:
            found.append(RowSetting(rows, warps))
    return found


def staying(now: RowSetting) -> list[RowSetting]:
    """Grids that stay on their multiprocessors, around a setting whose grid does not."""
    wide = replace(now, rows=2 * now.rows, warps=min(16, 2 * now.warps))
    few = max(1, 16 // now.warps)
    return [
        replace(base, resident=max(1, resident), registers=registers, buffers=buffers)
        for base, resident, registers, buffers in (
            (now, few // 2, 0, 2),
            (now, few * 3 // 4, 168, 2),
            (now, few, 128, 1),
            (now, few * 5 // 4, 96, 1),
            (now, few * 6 // 4, 80, 1),
            (wide, few // 4, 0, 2),
            (wide, few // 2, 128, 1),
        )
    ]


def attend_candidates(setting: AttendSetting, *, long: bool) -> list[AttendSetting]:
    """Settings for attention over long contexts, or over short ones."""
    if long:
        tiles = ((32, 64), (64, 64), (64, 32), (128, 32), (64, 16))
        return [replace(setting, split_tile=t, splits=s, warps=w) for (t, s), w in itertools.product(tiles, (4, 8))]
    return [replace(setting, tile=tile, warps=warps) for tile, warps in itertools.product((32, 64, 128), (2, 4, 8))]


def _label(s: RowSetting) -> str:
    stays = f" stays {s.resident}, buffers {s.buffers}, registers {s.registers}" if s.resident else ""
    return f"{s.rows} rows x {s.warps} warps{stays}"


def _label_of_attention(s: AttendSetting) -> str:
    return f"tile {s.tile}, {s.warps} warps, {s.splits} splits of {s.split_tile}"
