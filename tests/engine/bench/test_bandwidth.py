"""The yardstick measures something plausible."""

from __future__ import annotations

import pytest
import torch

from engine.bench.bandwidth import measure_read_bandwidth


def test_a_cpu_reads_between_a_tenth_and_a_thousand_gigabytes_a_second() -> None:
    found = measure_read_bandwidth(torch.device("cpu"), buffer_bytes=32 * 1024**2)
    assert 1e8 < found.bytes_per_s < 1e12
    assert found.reader


@pytest.mark.gpu
def test_on_cuda_a_streaming_kernel_reads_as_fast_as_anything_in_torch() -> None:
    found = measure_read_bandwidth(torch.device("cuda"))
    assert found.reader.startswith("stream")
    assert 1e11 < found.bytes_per_s < 2e13
