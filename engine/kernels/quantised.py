"""A whole step of one row on the CPU, on the blocks that the file stores: compiled by Numba, no torch inside.

A step is a list of stages: a product, or attention. A stage is cut into chunks of rows (of heads) that whoever is free
claims; nobody passes a stage before its last chunk is done. So a thread that the system holds up delays one chunk, and
no bit depends on who computed it. The claims only ever count upwards: `generation` is the number of the step, and a
helper that comes late finds every chunk of its step claimed.

All is said in addresses and calls each function from one place: Numba compiles this in seconds, not in a minute.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import int64, njit, typeof
from numba.core.caching import NullCache

from engine.kernels.lanes import (
    add_release,
    f32_row,
    f32_rows,
    get,
    get_word,
    load_acquire,
    mix_16,
    mix_64,
    put,
    q4_0_row,
    q4_0_rows,
    q4_1_row,
    q4_1_rows,
    q8_0_row,
    q8_0_rows,
    sched_yield,
    sem_post,
    sem_wait,
    swap_if,
    usleep,
)

Q4_0, Q4_1, Q8_0 = 0, 1, 2
KINDS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0}
STORE, ADD, GATE, ATTEND = 0, 1, 2, 3
COLUMNS = 10
LINE = 128  # bytes between counters, so that two are never on one cache line
_LOOKS, _YIELDS, _NAP_US = 2000, 50, 30


class Score(NamedTuple):
    """All that a step touches: sizes, and addresses of memory that the caller keeps. float32 but where it says int64.

    stages `[stages, COLUMNS]` int64: what it is (STORE, ADD, GATE: a product, by what becomes of it; or ATTEND),
        source, target, norm (0: none), address of the matrix, kind, blocks a row, rows, rows a chunk, layer.
    biases `[layers, qkv_rows]`, head_norms `[layers, 2, head_dim]`: 0 where there are none.
    cos, sin `[context, head_dim / 2]`. cache `[layers, 2, slots, kv_heads, context, head_dim]`.
    qkv, attended: as in StepBuffers. active `[1]`, position `[slots]` int64.
    scratch: `scratch_bytes` a thread; its parts begin at those of `sums`, `outputs`, `scores`, `query`.
    counters: two lines a stage, claimed and done; generation, stop: int64; wake: a semaphore.
    """

    stages: int
    stage_count: int
    heads: int
    kv_heads: int
    head_dim: int
    slots: int
    context: int
    eps: float
    biases: int
    head_norms: int
    cos: int
    sin: int
    cache: int
    qkv: int
    attended: int
    active: int
    position: int
    scratch: int
    scratch_bytes: int
    sums: int
    outputs: int
    scores: int
    query: int
    counters: int
    generation: int
    stop: int
    wake: int


_inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_inner
def claim(at, chunks, generation):
    """The next chunk of the stage whose counters are at `at`, or -1 where all are claimed."""
    end = generation * chunks
    taken = load_acquire(at)
    while taken < end:
        if swap_if(at, taken, taken + 1):
            return taken - end + chunks
        taken = load_acquire(at)
    return -1


@_inner
def wait(at, chunks, generation):
    """Wait until every chunk of a stage is done.

    Who does the last of them may have lost its processor, perhaps to us: after a while let others have it, then sleep.
    """
    looks = 0
    while load_acquire(at + LINE) < generation * chunks:
        looks += 1
        if looks > _LOOKS + _YIELDS:
            usleep(_NAP_US)
        elif looks > _LOOKS:
            sched_yield()


@_inner
def multiply(kind, at, row_bytes, blocks, rows, x, sums, y):
    """y `[rows]` = rows from address `at` times x. A row's bits do not depend on its neighbours."""
    fours = rows - rows % 4
    for r in range(0, fours, 4):
        here, there = at + r * row_bytes, y + 4 * r
        if kind == Q4_1:
            q4_1_rows(here, row_bytes, blocks, x, sums, there)
        elif kind == Q8_0:
            q8_0_rows(here, row_bytes, blocks, x, sums, there)
        else:
            q4_0_rows(here, row_bytes, blocks, x, sums, there)
    for r in range(fours, rows):
        here, there = at + r * row_bytes, y + 4 * r
        if kind == Q4_1:
            q4_1_row(here, row_bytes, blocks, x, sums, there)
        elif kind == Q8_0:
            q8_0_row(here, row_bytes, blocks, x, sums, there)
        else:
            q4_0_row(here, row_bytes, blocks, x, sums, there)


@_inner
def _inverse_rms(at, count, eps, y):
    f32_row(at, 0, count // 16, at, at, y)
    return np.float32(1.0 / math.sqrt(get(y, 0) / np.float32(count) + np.float32(eps)))


@_inner
def _row_bytes(kind, blocks):
    if kind == Q4_1:
        return 20 * blocks
    if kind == Q8_0:
        return 34 * blocks
    return 18 * blocks


@_inner
def _read(source, norm, count, eps, x, sums, y):
    """x = source, through a norm where there is one, and the sum of each block of it."""
    factor = np.float32(1.0)
    if norm != 0:
        factor = _inverse_rms(source, count, eps, y)
    for block in range(count // 32):
        total = np.float32(0.0)
        for i in range(32 * block, 32 * block + 32):
            number = get(source, i)
            if norm != 0:
                number = number * factor * get(norm, i)
            put(x, i, number)
            total += number
        put(sums, block, total)


@_inner
def _product(stage, x, sums, y, first, rows):
    """Rows `first` and on of a stage's product, and what becomes of them."""
    what, target, at, kind = get_word(stage, 0), get_word(stage, 2), get_word(stage, 4), get_word(stage, 5)
    blocks = get_word(stage, 6)
    row_bytes = _row_bytes(kind, blocks)
    parts = 1
    if what == GATE:
        parts = 2
    for part in range(parts):
        here = at + (first + part * get_word(stage, 7)) * row_bytes
        multiply(kind, here, row_bytes, blocks, rows, x, sums, y + 4 * part * rows)
    for i in range(rows):
        number = get(y, i)
        if what == ADD:
            number += get(target, first + i)
        elif what == GATE:
            number = number / (np.float32(1.0) + np.float32(math.exp(-number))) * get(y, rows + i)
        put(target, first + i, number)


@_inner
def _prepare(s, layer, which, head, place, y, target):
    """Bias, norm and rotation of one head of q (`which` 0) or k (1), from qkv to `target`; v (2) takes a bias alone."""
    size, half = s.head_dim, s.head_dim // 2
    first = head * size
    for i in range(size):
        number = get(s.qkv, first + i)
        if s.biases != 0:
            number += get(s.biases, (s.heads + 2 * s.kv_heads) * size * layer + first + i)
        put(target, i, number)
    if which == 2:
        return
    if s.head_norms != 0:
        factor = _inverse_rms(target, size, s.eps, y)
        for i in range(size):
            put(target, i, get(target, i) * factor * get(s.head_norms, (2 * layer + which) * size + i))
    for i in range(half):
        cos, sin = get(s.cos, place * half + i), get(s.sin, place * half + i)
        a, b = get(target, i), get(target, half + i)
        put(target, i, a * cos - b * sin)
        put(target, half + i, b * cos + a * sin)


@_inner
def _attend(s, layer, kv_head, slot, place, y, scores, query):
    """One key head's queries over positions 0 to `place`, whose key and value are written first."""
    size, group = s.head_dim, s.heads // s.kv_heads
    row = 4 * size
    per_kind = s.slots * s.kv_heads * s.context * row
    keys = s.cache + 2 * layer * per_kind + (slot * s.kv_heads + kv_head) * s.context * row
    values = keys + per_kind
    for which in range(group + 2):  # k, v, then the queries
        head, target, kind = kv_head * group + which - 2, query, 0
        if which == 0:
            head, target, kind = s.heads + kv_head, keys + place * row, 1
        elif which == 1:
            head, target, kind = s.heads + s.kv_heads + kv_head, values + place * row, 2
        _prepare(s, layer, kind, head, place, y, target)
        if which >= 2:
            _look(query, keys, place + 1, size, scores)
            out = s.attended + head * row
            wide = size - size % 64
            for first in range(0, 4 * wide, 256):
                mix_64(scores, values + first, row, place + 1, out + first)
            for first in range(4 * wide, row, 64):
                mix_16(scores, values + first, row, place + 1, out + first)


@_inner
def _look(query, keys, count, size, scores):
    """Softmax of the query's products with `count` keys over the root of their size."""
    row, fours = 4 * size, count - count % 4
    for r in range(0, fours, 4):
        f32_rows(keys + r * row, row, size // 16, query, query, scores + 4 * r)
    for r in range(fours, count):
        f32_row(keys + r * row, row, size // 16, query, query, scores + 4 * r)
    scale, most, total = np.float32(1.0 / math.sqrt(size)), get(scores, 0), np.float32(0.0)
    for i in range(count):
        most = max(most, get(scores, i))
    for i in range(count):
        number = np.float32(math.exp((get(scores, i) - most) * scale))
        put(scores, i, number)
        total += number
    for i in range(count):
        put(scores, i, get(scores, i) / total)


@_inner
def _play(s, me):
    """Every stage of the present step, as one of its threads."""
    generation = load_acquire(s.generation)
    slot = get_word(s.active, 0)
    place = get_word(s.position, slot)
    x = s.scratch + me * s.scratch_bytes
    sums, y, scores, query = x + s.sums, x + s.outputs, x + s.scores, x + s.query
    for index in range(s.stage_count):
        stage, counters = s.stages + 8 * COLUMNS * index, s.counters + 2 * LINE * index
        what, rows, step = get_word(stage, 0), get_word(stage, 7), get_word(stage, 8)
        if what != ATTEND:
            _read(get_word(stage, 1), get_word(stage, 3), get_word(stage, 6) * 32, s.eps, x, sums, y)
        chunks = (rows + step - 1) // step
        chunk = claim(counters, chunks, generation)
        while chunk >= 0:
            if what == ATTEND:
                _attend(s, get_word(stage, 9), chunk, slot, place, y, scores, query)
            else:
                first = chunk * step
                _product(stage, x, sums, y, first, min(step, rows - first))
            add_release(counters + LINE, 1)
            chunk = claim(counters, chunks, generation)
        wait(counters, chunks, generation)


@njit(nogil=True, no_cfunc_wrapper=True)
def take_part(s, me, helpers):
    """Lead one step as thread 0, with `helpers` others; or, as one of those, help in every step until `stop` is set."""
    if me == 0:
        add_release(s.generation, 1)
        for _ in range(helpers):
            sem_post(s.wake)
    while True:
        if me != 0:
            sem_wait(s.wake)  # one that a signal broke off is only one look too many
            if load_acquire(s.stop) != 0:
                return
        _play(s, me)
        if me == 0:
            return


def compile_step() -> None:
    """Compile `take_part`, or take it from the folder where an earlier process left it."""
    numbers: Any = (0.0 if name == "eps" else 0 for name in Score._fields)
    arguments = typeof(Score(*numbers)), int64, int64
    try:
        take_part.enable_caching()
        take_part.compile(arguments)
    except Exception:  # no folder can be written, the disk is full, or what is kept is damaged
        take_part._cache = NullCache()
        take_part.compile(arguments)
