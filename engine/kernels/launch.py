"""How the kernels of a step are launched: with programmatic dependent launch where the device has it.

With it, a kernel's blocks start while the kernel before them still runs, load what that kernel does not write (weights,
rotary tables, old keys and values) and then wait for its end. `begin` is that wait. A kernel lets its successor start
right after its own wait, so at most two kernels overlap, and whatever was written two kernels back may be read before
the wait. The attention and the norm let it start at once (`allow_next`): they use few blocks, and what follows them
reads weights only before its own wait.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels import prebuilt
from engine.kernels.tuning import RowSetting

_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Launch:
    """Options that every kernel of a step shares.

    dependent: programmatic dependent launch is used; only devices of capability 9.0 and later have it.
    processors: multiprocessors of the device.
    """

    dependent: bool
    processors: int

    @classmethod
    def on(cls, device: torch.device) -> Launch:
        """What `device` can do."""
        if device.type != "cuda":
            return cls(dependent=False, processors=1)
        prebuilt.use()
        properties = torch.cuda.get_device_properties(device)
        return cls((properties.major, properties.minor) >= _HOPPER, properties.multi_processor_count)

    def products(self, setting: RowSetting, n: int) -> dict[str, Any]:
        """Compile-time constants of a product of n rows: how its blocks follow each other and what is loaded ahead."""
        loops = setting.grid(n, self.processors)[0] < triton.cdiv(n, setting.rows)
        return {
            "BLOCKS": triton.cdiv(n, setting.rows),
            "BUFFERS": setting.buffers if loops else 1,
            "LOOP": loops,
            "PDL": self.dependent,
        }

    def options(self, warps: int, *, fused: bool = False, registers: int = 0) -> dict[str, Any]:
        """Keyword arguments of a launch. Products and sums are fused where the kernel says so, never where the compiler
        likes: that keeps a row's bits independent of how many rows are compiled together.
        """
        options: dict[str, Any] = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": fused}
        if registers:
            options["maxnreg"] = registers
        if self.dependent:
            options["launch_pdl"] = True
        return options


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait until everything before this kernel is written, then let the next kernel start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def allow_next(PDL: tl.constexpr):
    """Let the next kernel start; to be followed by `wait_previous`."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_previous(PDL: tl.constexpr):
    """Wait until everything before this kernel is written."""
    if PDL:
        gdc_wait()
