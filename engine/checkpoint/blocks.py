"""Block-quantised GGUF data to float32, exactly as the format defines it.

Each function takes `[blocks, stored bytes]` uint8 and returns `[blocks, items]` float32. A block holds its scales as
float16 and its items as small integers; the order of the float32 operations is the format's, so results are exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _half(raw: Tensor) -> Tensor:
    """Two bytes a row `[n, 2]` to one float32 `[n, 1]`."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """`[..., k]` bytes to `[..., 2k]` values 0..15: the low halves first, then the high ones."""
    return torch.cat((raw & 0x0F, raw >> 4), dim=-1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """Four bytes a row `[n, 4]` to their 32 bits `[n, 32]`, lowest first, each worth 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((raw.unsqueeze(-1) >> shifts) & 1).flatten(1) << 4


def _q4_0(raw: Tensor) -> Tensor:
    return _half(raw[:, :2]) * (_nibbles(raw[:, 2:]).float() - 8)


def _q4_1(raw: Tensor) -> Tensor:
    return _half(raw[:, :2]) * _nibbles(raw[:, 4:]).float() + _half(raw[:, 2:4])


def _q5_0(raw: Tensor) -> Tensor:
    return _half(raw[:, :2]) * ((_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])).float() - 16)


def _q5_1(raw: Tensor) -> Tensor:
    return _half(raw[:, :2]) * (_nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])).float() + _half(raw[:, 2:4])


def _q8_0(raw: Tensor) -> Tensor:
    return raw[:, 2:].contiguous().view(torch.int8).float() * _half(raw[:, :2])


def _scales_and_minima(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves and twelve packed bytes `[n, 16]` to scales and minima `[n, 8, 1]` of eight sub-blocks."""
    low, middle, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat((low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)), dim=1).float()
    minima = torch.cat((middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)), dim=1).float()
    return (_half(raw[:, :2]) * scales).unsqueeze(-1), (_half(raw[:, 2:4]) * minima).unsqueeze(-1)


def _q4_k(raw: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(raw)
    items = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32).float()
    return (scales * items - minima).flatten(1)


def _q5_k(raw: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(raw)
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = ((raw[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    items = (_nibbles(raw[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32) | fifth).float()
    return (scales * items - minima).flatten(1)


def _q6_k(raw: Tensor) -> Tensor:
    scales = (_half(raw[:, 208:]) * raw[:, 192:208].contiguous().view(torch.int8).float()).unsqueeze(-1)
    low = _nibbles(raw[:, :128].reshape(-1, 2, 64)).view(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = ((raw[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 8, 32) << 4
    return (scales * ((low | high).float() - 32).view(-1, 16, 16)).flatten(1)


DEQUANTISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
