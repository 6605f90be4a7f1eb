"""How fast this device reads memory: the yardstick of every decode figure, measured beside it in the same run."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

# Far beyond any cache (an H200 has 50 MB of L2, a server CPU up to a few hundred MB of L3), small beside the memory.
CUDA_BYTES = 4 * 1024**3
CPU_BYTES = 512 * 1024**2
_REPEATS = 7
_READS_AT_ONCE = 4  # between two CUDA events, so that what a launch costs is left out


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """The best plain streaming read found.

    Attributes:
        bytes_per_s: median over the repeats of the best reader.
        reader: its name.
    """

    bytes_per_s: float
    reader: str


def measure_read_bandwidth(device: torch.device, buffer_bytes: int | None = None) -> ReadBandwidth:
    """Read one large buffer in several plain ways and keep the fastest: reductions of torch, and a kernel on CUDA.

    Each reads every byte once and writes next to nothing, so its rate is a floor of what the memory can give: a decode
    step may come out above it.
    """
    size = buffer_bytes or (CUDA_BYTES if device.type == "cuda" else CPU_BYTES)
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    rates = {name: size / _seconds(device, read) for name, read in _reads(buffer)}
    reader = max(rates, key=lambda name: rates[name])
    return ReadBandwidth(bytes_per_s=rates[reader], reader=reader)


def _reads(buffer: torch.Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, reader in _READERS.items():
        yield name, partial(reader, buffer)
    if buffer.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from engine.bench.stream import streaming_reads
        from engine.kernels import prebuilt

        prebuilt.use()

        yield from streaming_reads(buffer)


def _rows(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer as `[rows, 8192]`: many independent sums, which torch spreads over the device better than one."""
    return buffer[: buffer.numel() // 8192 * 8192].view(-1, 8192)


_READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "largest": torch.max,
    "row sums": lambda buffer: _rows(buffer).sum(dim=1),
    "row largest": lambda buffer: _rows(buffer).amax(dim=1),
    "dot": lambda buffer: torch.dot(buffer, buffer),
    "matrix by vector": lambda buffer: torch.mv(_rows(buffer), buffer[:8192]),
}


def _seconds(device: torch.device, read: Callable[[], object]) -> float:
    """Median seconds of one read, after one that is not counted."""
    read()
    if device.type != "cuda":
        return statistics.median(_wall_seconds(read) for _ in range(_REPEATS))
    times = []
    for _ in range(_REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(_READS_AT_ONCE):
            read()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / 1000 / _READS_AT_ONCE)
    return statistics.median(times)


def _wall_seconds(read: Callable[[], object]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start
