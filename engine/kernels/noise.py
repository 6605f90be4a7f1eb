"""Gumbel noise and exponentials of single float32 operations, so that they round as in `engine.sampler` on any device.

Kernels that use them must be compiled without fusing products and sums, which `Launch.options` sees to.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _log(x, less_one):
    """log(x) of normal numbers x > 0, where `less_one` is x - 1 with all its digits. See engine.sampler."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = tl.where(exponent == 0, less_one, (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0)
    square = f * f
    tail = f * 0.070376836292 + -0.1151461031
    tail = tail * f + 0.116769987
    tail = tail * f + -0.12420140846
    tail = tail * f + 0.14249322787
    tail = tail * f + -0.16668057665
    tail = tail * f + 0.20000714765
    tail = tail * f + -0.24999993993
    tail = tail * f + 0.33333331174
    power = exponent.to(tl.float32)
    tail = (tail * f) * square + power * -2.12194440e-4 - square * 0.5
    return (f + tail) + power * 0.693359375


@triton.jit
def gumbel(seed, position, blocks):
    """Noise float32 `[4 n]` for ids 4 b + j of blocks b `[n]` int32; seed and position are int64 scalars."""
    counter = tl.zeros_like(blocks)
    low = counter + (position & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
    high = counter + (position >> 32).to(tl.uint32).to(tl.int32, bitcast=True)
    w0, w1, w2, w3 = tl.philox(
        seed,
        blocks.to(tl.uint32, bitcast=True),
        low.to(tl.uint32, bitcast=True),
        high.to(tl.uint32, bitcast=True),
        counter.to(tl.uint32, bitcast=True),
    )
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(4 * blocks.shape[0])
    v = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355224609375)
    exponential = -_log(1.0 - v, -v)
    return -_log(exponential, exponential - 1.0)


@triton.jit
def gap_mass(gaps):
    """exp(-gap) of gaps int32 in multiples of 2**-19, as int64 multiples of 2**-40. See engine.sampler."""
    octaves = gaps.to(tl.float32) * 2.7517223770701094e-06
    whole = octaves.to(tl.int32)
    f = octaves - whole.to(tl.float32)
    power = f * 0.00010902568465098739 + -0.0012747551081702113
    power = power * f + 0.009579186327755451
    power = power * f + -0.05549076199531555
    power = power * f + 0.24022436141967773
    power = power * f + -0.6931470632553101
    power = power * f + 1.0
    return ((power * 16777216.0).to(tl.int64) << 16) >> whole.to(tl.int64)
