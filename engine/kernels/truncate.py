"""What top-k and top-p keep, found in three passes over V scaled logits. The twin is `engine.sampler.widest_gap`.

They look for the widest gap below the largest scaled logit that they keep. Gaps are 24-bit integers: a histogram over
the upper 12 bits finds a bin, and one over the lower 12 bits of that bin's ids finds the gap. Bins hold counts and
integer masses, so atomics give the same sums in any order. Top-p's mass is that of the ids that top-k left, so its bin
is looked for after top-k's gap is known. What is off, or lies in ids too unlikely ever to be chosen, adds nothing.

Bytes: each pass reads 4 V from the second-level cache; the histograms are 160 KiB, of which each block of a pass reads
up to 128 KiB.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, begin
from engine.kernels.noise import gap_mass

BLOCK = 1024
WARPS = 4
BINS = tl.constexpr(4096)
_GROUPS = tl.constexpr(64)  # of 64 bins
_SHIFT = tl.constexpr(12)
_LOW_BITS = tl.constexpr(4095)
FARTHEST = tl.constexpr(2**24 - 1)
_GAP_UNITS = tl.constexpr(float(2**19))
# Rows of the histograms, and words of the state that a pass leaves for later ones.
_MASSES, _K_MASSES, _P_MASSES, _COUNTS, _K_COUNTS = (tl.constexpr(row) for row in range(5))
_HISTOGRAMS = 5
_K_BIN, _K_REST, _P_BIN, _P_REST = (tl.constexpr(word) for word in range(4))
_WORDS = 4
# Columns of the sampler table's numbers and integers.
INVERSE_TEMPERATURE, NOISE, TOP_P, MIN_P_GAP, REPETITION, PRESENCE, FREQUENCY = (
    tl.constexpr(column) for column in range(7)
)
NUMBERS = tl.constexpr(7)
SEED, TOP_K = tl.constexpr(0), tl.constexpr(1)
INTEGERS = tl.constexpr(2)


@triton.jit
def largest_of(maxima, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr):
    places = tl.arange(0, BLOCKS_PADDED)
    return tl.max(tl.load(maxima + places, mask=places < BLOCKS, other=float("-inf")), axis=0)


@triton.jit
def fixed_gaps(scaled, ids, valid, largest):
    """Gaps `[BLOCK]` int32 in fixed point, and in nats."""
    gap = largest - tl.load(scaled + ids, mask=valid, other=float("-inf"))
    return tl.minimum(gap * _GAP_UNITS, float(FARTHEST)).to(tl.int32), gap


@triton.jit
def _place(number):
    """Where a bin lies: the same member of every group side by side, so that groups are summed without shuffles."""
    return (number & (_GROUPS - 1)) * _GROUPS + number // _GROUPS


@triton.jit
def _first_reaching(bins, wanted):
    """The first bin at which the running sum of bins reaches `wanted`, and what of it the bins before leave.

    At least BINS if none does. By groups: a running sum over all bins at once would cost more than the pass itself.
    """
    groups = tl.arange(0, _GROUPS)
    sums = tl.sum(tl.load(bins + groups[:, None] * _GROUPS + groups[None, :]), axis=0)
    group = tl.sum((tl.cumsum(sums, axis=0) < wanted).to(tl.int32), axis=0)
    wanted -= tl.sum(tl.where(groups < group, sums, 0), axis=0)
    inside = tl.load(bins + groups * _GROUPS + group, mask=group * _GROUPS + groups < BINS, other=0)
    member = tl.sum((tl.cumsum(inside, axis=0) < wanted).to(tl.int32), axis=0)
    wanted -= tl.sum(tl.where(groups < member, inside, 0), axis=0)
    return group * _GROUPS + member, wanted


@triton.jit
def _sum_below(bins, end):
    """The sum of all bins below `end`."""
    groups = tl.arange(0, _GROUPS)
    numbers = groups[None, :] * _GROUPS + groups[:, None]
    places = groups[:, None] * _GROUPS + groups[None, :]
    return tl.sum(tl.sum(tl.load(bins + places, mask=numbers < end, other=0), axis=0), axis=0)


@triton.jit
def _count_gaps(
    scaled, maxima, active, numbers, integers, histograms,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Histograms of the gaps' upper bits: masses if top-p is on, counts if top-k is."""
    begin(PDL)
    slot = tl.load(active)
    by_mass = tl.load(numbers + slot * NUMBERS + TOP_P) < 1.0
    by_count = tl.load(integers + slot * INTEGERS + TOP_K) < V
    if by_mass | by_count:
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        valid = ids < V
        gaps, _ = fixed_gaps(scaled, ids, valid, largest_of(maxima, BLOCKS, BLOCKS_PADDED))
        near = valid & (gaps < FARTHEST)
        bins = _place(gaps >> _SHIFT)
        if by_mass:
            mass = gap_mass(gaps)
            tl.atomic_add(histograms + _MASSES * BINS + bins, mass, mask=near & (mass > 0), sem="relaxed")
        if by_count:
            one = tl.full((BLOCK,), 1, tl.int64)
            tl.atomic_add(histograms + _COUNTS * BINS + bins, one, mask=near, sem="relaxed")


@triton.jit
def _narrow_top_k(
    scaled, maxima, active, numbers, integers, histograms, state,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The bin that holds the k-th largest, and histograms of its ids' lower bits."""
    begin(PDL)
    slot = tl.load(active)
    top_k = tl.load(integers + slot * INTEGERS + TOP_K)
    if top_k < V:
        chosen, rest = _first_reaching(histograms + _COUNTS * BINS, top_k)
        if tl.program_id(0) == 0:
            tl.store(state + _K_BIN, chosen.to(tl.int64))
            tl.store(state + _K_REST, rest)
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        valid = ids < V
        gaps, _ = fixed_gaps(scaled, ids, valid, largest_of(maxima, BLOCKS, BLOCKS_PADDED))
        inside = valid & (gaps < FARTHEST) & ((gaps >> _SHIFT) == chosen)
        low = _place(gaps & _LOW_BITS)
        one = tl.full((BLOCK,), 1, tl.int64)
        tl.atomic_add(histograms + _K_COUNTS * BINS + low, one, mask=inside, sem="relaxed")
        if tl.load(numbers + slot * NUMBERS + TOP_P) < 1.0:
            tl.atomic_add(histograms + _K_MASSES * BINS + low, gap_mass(gaps), mask=inside, sem="relaxed")


@triton.jit
def _narrow_top_p(
    scaled, maxima, active, numbers, integers, histograms, state,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The bin where the mass of the largest reaches top-p of what top-k left, and a histogram of its lower bits."""
    begin(PDL)
    slot = tl.load(active)
    top_p = tl.load(numbers + slot * NUMBERS + TOP_P)
    if top_p < 1.0:
        total = _sum_below(histograms + _MASSES * BINS, BINS)
        if tl.load(integers + slot * INTEGERS + TOP_K) < V:
            k_bin = tl.load(state + _K_BIN)
            if k_bin < BINS:  # else the k-th lies farther than masses reach
                low, _ = _first_reaching(histograms + _K_COUNTS * BINS, tl.load(state + _K_REST))
                total = _sum_below(histograms + _MASSES * BINS, k_bin)
                total += _sum_below(histograms + _K_MASSES * BINS, low + 1)
        product = top_p.to(tl.float64) * total.to(tl.float64)
        target = product.to(tl.int64)
        target += (target.to(tl.float64) < product).to(tl.int64)  # rounded up
        chosen, rest = _first_reaching(histograms + _MASSES * BINS, target)
        if tl.program_id(0) == 0:
            tl.store(state + _P_BIN, chosen.to(tl.int64))
            tl.store(state + _P_REST, rest)
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        valid = ids < V
        gaps, _ = fixed_gaps(scaled, ids, valid, largest_of(maxima, BLOCKS, BLOCKS_PADDED))
        inside = valid & (gaps < FARTHEST) & ((gaps >> _SHIFT) == chosen)
        mass = gap_mass(gaps)
        where = histograms + _P_MASSES * BINS + _place(gaps & _LOW_BITS)
        tl.atomic_add(where, mass, mask=inside & (mass > 0), sem="relaxed")


@triton.jit
def widest_gap(top_k, top_p, histograms, state, V: tl.constexpr):
    """The widest gap that top-k and top-p keep, int32."""
    widest = tl.full((), FARTHEST, tl.int32)
    if top_p < 1.0:
        low, _ = _first_reaching(histograms + _P_MASSES * BINS, tl.load(state + _P_REST))
        widest = ((tl.load(state + _P_BIN) << _SHIFT) + low).to(tl.int32)
    elif top_k < V:
        k_bin = tl.load(state + _K_BIN)
        if k_bin < BINS:
            low, _ = _first_reaching(histograms + _K_COUNTS * BINS, tl.load(state + _K_REST))
            widest = ((k_bin << _SHIFT) + low).to(tl.int32)
    return widest


class Truncation:
    """Histograms `[5, 4096]` int64 and state of a search, allocated once. The histograms must be 0 before `find`."""

    def __init__(self, device: torch.device) -> None:
        self.histograms = torch.zeros(_HISTOGRAMS, BINS.value, dtype=torch.int64, device=device)
        self.state = torch.zeros(_WORDS, dtype=torch.int64, device=device)

    def find(
        self,
        scaled: torch.Tensor,
        maxima: torch.Tensor,
        active: torch.Tensor,
        numbers: torch.Tensor,
        integers: torch.Tensor,
        launch: Launch,
    ) -> None:
        """Leave what `widest_gap` reads. scaled `[V]` float32, maxima: the largest of each BLOCK of them."""
        grid, inputs = maxima.shape, (scaled, maxima, active, numbers, integers, self.histograms)
        sizes = {
            "V": scaled.shape[0],
            "BLOCK": BLOCK,
            "BLOCKS": maxima.shape[0],
            "BLOCKS_PADDED": triton.next_power_of_2(maxima.shape[0]),
            "PDL": launch.dependent,
            **launch.options(WARPS),
        }
        _count_gaps[grid](*inputs, **sizes)
        _narrow_top_k[grid](*inputs, self.state, **sizes)
        _narrow_top_p[grid](*inputs, self.state, **sizes)
