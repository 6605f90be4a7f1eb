"""What a decode step must read, and how fast its device's memory could give it: the two sides of the bandwidth share.

Both are known before the first step, so that a dashboard needs only the measured seconds beside them.
"""

from __future__ import annotations

import re
from typing import Final

from engine.architecture import Architecture
from engine.bench.shapes import weight_bytes

_ELEMENT_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}

# Read and write bandwidth as the data sheets give it, bytes/s, by whole words of the name that CUDA gives the device.
# The first that fits counts, so longer names stand before what they contain. Memory never gives all of it.
_DATA_SHEETS: Final = (
    ("B200", 8.0e12),
    ("GH200", 4.9e12),
    ("H200", 4.8e12),
    ("H100 NVL", 3.9e12),
    ("H100 PCIe", 2.0e12),
    ("H100", 3.35e12),
    ("A100-SXM4-80GB", 2.039e12),
    ("A100 80GB", 1.935e12),
    ("A100", 1.555e12),
    ("L40S", 8.64e11),
    ("A10G", 6.0e11),
    ("A10", 6.0e11),
    ("L4", 3.0e11),
    ("T4", 3.2e11),
)


def step_weight_bytes(architecture: object, precision: str, packed_bytes: int | None) -> int | None:
    """Bytes of weights that one decode step reads; keys and values come on top, so what is made of it is a floor.

    None where it is not known: a model that is not played by the native decoder.
    """
    if packed_bytes is not None:
        return packed_bytes
    if isinstance(architecture, Architecture) and precision in _ELEMENT_BYTES:
        return weight_bytes(architecture, _ELEMENT_BYTES[precision])
    return None


def memory_bytes_per_s(device: str) -> float | None:
    """The data sheet's memory bandwidth of a device by its name, or None for a CPU or a device not in the table."""
    for name, bytes_per_s in _DATA_SHEETS:
        if re.search(rf"\b{re.escape(name)}\b", device):
            return bytes_per_s
    return None
