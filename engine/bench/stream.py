"""The fastest plain way known here to read CUDA memory: a Triton kernel that sums and keeps nothing."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

# (elements a block, blocks a multiprocessor, warps): which is best differs from device to device.
_SETTINGS = ((8192, 4, 4), (4096, 8, 4), (8192, 2, 8), (16384, 2, 8))


@triton.jit
def _stream(source, sink, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for block in tl.range(tl.program_id(0), COUNT, tl.num_programs(0), num_stages=3):
        total += tl.load(source + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(sink + tl.program_id(0), tl.sum(total, axis=0))


def streaming_reads(buffer: torch.Tensor) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, read) for each setting; `read` loads all but a last partial block of `buffer`, float32 on CUDA.

    The buffer is read as bfloat16, so that a block's elements are as many bytes as weights would be.
    """
    source = buffer.view(torch.bfloat16)
    processors = torch.cuda.get_device_properties(buffer.device).multi_processor_count
    for block, per_processor, warps in _SETTINGS:
        grid = (per_processor * processors,)
        sink = torch.zeros(grid, dtype=torch.float32, device=buffer.device)

        def read(grid: tuple[int] = grid, block: int = block, warps: int = warps, sink: torch.Tensor = sink) -> None:
            _stream[grid](source, sink, COUNT=source.numel() // block, BLOCK=block, num_warps=warps)

        yield f"stream {block} x {per_processor}", read
