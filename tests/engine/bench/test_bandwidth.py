"""The yardstick measures something plausible."""

from __future__ import annotations

import torch

from engine.bench.bandwidth import measure_read_bandwidth


def test_a_cpu_reads_between_a_tenth_and_a_thousand_gigabytes_a_second() -> None:
    found = measure_read_bandwidth(torch.device("cpu"), buffer_bytes=32 * 1024**2)
    assert 1e8 < found.bytes_per_s < 1e12
    assert found.reader
