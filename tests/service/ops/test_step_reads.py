"""What a step reads is counted as the benchmark counts it, and a device has the bandwidth of its own data sheet."""

from __future__ import annotations

import pytest

from engine.bench.shapes import SHAPES, weight_bytes
from service.ops.step_reads import memory_bytes_per_s, step_weight_bytes


def test_a_step_reads_what_the_benchmark_says() -> None:
    llama = SHAPES["llama-2-7b"]

    assert step_weight_bytes(llama, "bfloat16", None) == weight_bytes(llama, 2)
    assert step_weight_bytes(llama, "float32", None) == weight_bytes(llama, 4)
    assert step_weight_bytes(llama, "float32", 97_000_000) == 97_000_000  # stored blocks, not matrices


def test_what_is_not_known_is_not_guessed() -> None:
    assert step_weight_bytes(object(), "bfloat16", None) is None
    assert memory_bytes_per_s("cpu") is None
    assert memory_bytes_per_s("NVIDIA L400") is None


@pytest.mark.parametrize(
    ("device", "gigabytes_per_s"),
    [
        ("NVIDIA A10G", 600),
        ("NVIDIA L4", 300),
        ("NVIDIA L40S", 864),
        ("Tesla T4", 320),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4900),
    ],
)
def test_a_device_is_known_by_the_name_that_cuda_gives_it(device: str, gigabytes_per_s: int) -> None:
    assert memory_bytes_per_s(device) == gigabytes_per_s * 1e9
