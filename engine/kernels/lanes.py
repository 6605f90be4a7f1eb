"""What Numba cannot say in Python: dot products in sixteen lanes over stored blocks, atomics, and semaphores.

Each is a few LLVM instructions, so the order of every sum is written here and is the same on every processor: lane by
lane over the blocks of a row, then the sixteen lanes by halves. Addresses are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
_BYTE, _HALF, _FLOAT, _WORD = ir.IntType(8), ir.HalfType(), ir.FloatType(), ir.IntType(64)
_BYTES, _FLOATS = ir.VectorType(_BYTE, LANES), ir.VectorType(_FLOAT, LANES)


class Row:
    """One row's sum while its blocks go by: sixteen lanes, and what the blocks' minima add."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._lanes = cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, None))
        self._rest = cgutils.alloca_once_value(builder, ir.Constant(_FLOAT, 0.0))

    def add(self, lanes: Any, scale: Any | None = None) -> None:
        """Add sixteen products, times the block's scale."""
        b = self._builder
        so_far = b.load(self._lanes)
        total = b.fadd(so_far, lanes) if scale is None else _multiply_add(b, _spread(b, scale), lanes, so_far)
        b.store(total, self._lanes)

    def add_rest(self, minimum: Any, block_sum: Any) -> None:
        """Add a block's minimum times the sum of its inputs."""
        b = self._builder
        b.store(_multiply_add(b, minimum, block_sum, b.load(self._rest)), self._rest)

    def total(self) -> Any:
        """All of it, as one float32."""
        b = self._builder
        lanes, width = b.load(self._lanes), LANES
        while width > 1:
            width //= 2
            low, high = (
                b.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(ir.IntType(32), width), list(picked)))
                for picked in (range(width), range(width, 2 * width))
            )
            lanes = b.fadd(low, high)
        return b.fadd(b.extract_element(lanes, ir.Constant(ir.IntType(32), 0)), b.load(self._rest))


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a type stores a row: `items` numbers in `stored_bytes`; `add(builder, at, inputs, block_sum, row)`."""

    items: int
    stored_bytes: int
    add: Callable[[Any, Any, list[Any], Any, Row], None]


def _nibbles(b: Any, at: Any) -> tuple[Any, Any]:
    packed = _load(b, at, _BYTES)
    four = ir.Constant(_BYTES, [4] * LANES)
    return b.and_(packed, ir.Constant(_BYTES, [15] * LANES)), b.lshr(packed, four)


def _add_q4_0(b: Any, at: Any, inputs: list[Any], block_sum: Any, row: Row) -> None:
    eight = ir.Constant(_BYTES, [8] * LANES)
    low, high = (b.sitofp(b.sub(part, eight), _FLOATS) for part in _nibbles(b, _past(b, at, 2)))
    row.add(_multiply_add(b, high, inputs[1], b.fmul(low, inputs[0])), _scale(b, at))


def _add_q4_1(b: Any, at: Any, inputs: list[Any], block_sum: Any, row: Row) -> None:
    low, high = (b.uitofp(part, _FLOATS) for part in _nibbles(b, _past(b, at, 4)))
    row.add(_multiply_add(b, high, inputs[1], b.fmul(low, inputs[0])), _scale(b, at))
    row.add_rest(_scale(b, _past(b, at, 2)), block_sum)


def _add_q8_0(b: Any, at: Any, inputs: list[Any], block_sum: Any, row: Row) -> None:
    low, high = (b.sitofp(_load(b, _past(b, at, start), _BYTES), _FLOATS) for start in (2, 2 + LANES))
    row.add(_multiply_add(b, high, inputs[1], b.fmul(low, inputs[0])), _scale(b, at))


def _add_f32(b: Any, at: Any, inputs: list[Any], block_sum: Any, row: Row) -> None:
    row.add(b.fmul(_load(b, at, _FLOATS), inputs[0]))


def _dots(blocks: Blocks, rows: int) -> Any:
    """`(at, row_bytes, count, x, sums, y)`: y[i] of `rows` rows from `at`, each of `count` blocks, times x.

    `sums` holds the sum of x over each block, where the type has minima.
    """

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        at, row_bytes, count, x, sums, y = args
        totals = [Row(b) for _ in range(rows)]
        with cgutils.for_range(b, count, intp=_WORD) as loop:
            x_at = b.add(x, b.mul(loop.index, ir.Constant(_WORD, 4 * blocks.items)))
            inputs = [_load(b, _past(b, x_at, 4 * start), _FLOATS) for start in range(0, blocks.items, LANES)]
            block_sum = _load(b, b.add(sums, b.mul(loop.index, ir.Constant(_WORD, 4))), _FLOAT)
            block_at = b.add(at, b.mul(loop.index, ir.Constant(_WORD, blocks.stored_bytes)))
            for index, row in enumerate(totals):
                offset = b.mul(row_bytes, ir.Constant(_WORD, index))
                blocks.add(b, b.add(block_at, offset), inputs, block_sum, row)
        for index, row in enumerate(totals):
            b.store(row.total(), b.inttoptr(_past(b, y, 4 * index), _FLOAT.as_pointer()))
        return _context.get_dummy_value()

    @intrinsic
    def dots(_typing: Any, at: Any, row_bytes: Any, count: Any, x: Any, sums: Any, y: Any) -> Any:
        return types.void(*[types.int64] * 6), write

    return dots


def _mix(vectors: int) -> Any:
    """`(shares, values, stride, count, y)`: y[16 * vectors] = sum of shares[i] * values[i], `stride` bytes apart."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        shares, values, stride, count, y = args
        totals = [cgutils.alloca_once_value(b, ir.Constant(_FLOATS, None)) for _ in range(vectors)]
        with cgutils.for_range(b, count, intp=_WORD) as loop:
            share = _spread(b, _load(b, b.add(shares, b.mul(loop.index, ir.Constant(_WORD, 4))), _FLOAT))
            at = b.add(values, b.mul(loop.index, stride))
            for index, total in enumerate(totals):
                value = _load(b, _past(b, at, 4 * LANES * index), _FLOATS)
                b.store(_multiply_add(b, share, value, b.load(total)), total)
        for index, total in enumerate(totals):
            b.store(b.load(total), b.inttoptr(_past(b, y, 4 * LANES * index), _FLOATS.as_pointer()), align=4)
        return _context.get_dummy_value()

    @intrinsic
    def mix(_typing: Any, shares: Any, values: Any, stride: Any, count: Any, y: Any) -> Any:
        return types.void(*[types.int64] * 5), write

    return mix


@intrinsic
def load_acquire(_typing: Any, at: Any) -> Any:
    """The int64 at `at`, and all that was written before it was."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.load_atomic(b.inttoptr(args[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), write


@intrinsic
def add_release(_typing: Any, at: Any, more: Any) -> Any:
    """Add to the int64 at `at`, after all that was written before. Returns what was there."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], _WORD.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), write


@intrinsic
def swap_if(_typing: Any, at: Any, expected: Any, new: Any) -> Any:
    """Write `new` over `expected` at `at`; False where something else is there."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        pointer = b.inttoptr(args[0], _WORD.as_pointer())
        return b.extract_value(b.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire"), 1)

    return types.boolean(types.int64, types.int64, types.int64), write


@intrinsic
def get(_typing: Any, at: Any, index: Any) -> Any:
    """The float32 at `index` from `at`."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _load(b, b.add(args[0], b.mul(args[1], ir.Constant(_WORD, 4))), _FLOAT)

    return types.float32(types.int64, types.int64), write


@intrinsic
def put(_typing: Any, at: Any, index: Any, number: Any) -> Any:
    """Write the float32 at `index` from `at`."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        where = b.add(args[0], b.mul(args[1], ir.Constant(_WORD, 4)))
        b.store(args[2], b.inttoptr(where, _FLOAT.as_pointer()))
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), write


@intrinsic
def get_word(_typing: Any, at: Any, index: Any) -> Any:
    """The int64 at `index` from `at`."""

    def write(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _load(b, b.add(args[0], b.mul(args[1], ir.Constant(_WORD, 8))), _WORD)

    return types.int64(types.int64, types.int64), write


sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
usleep = types.ExternalFunction("usleep", types.int32(types.int32))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


def _load(b: Any, at: Any, kind: Any) -> Any:
    return b.load(b.inttoptr(at, kind.as_pointer()), align=1)


def _scale(b: Any, at: Any) -> Any:
    return b.fpext(_load(b, at, _HALF), _FLOAT)


def _past(b: Any, at: Any, offset: int) -> Any:
    return b.add(at, ir.Constant(_WORD, offset))


def _spread(b: Any, number: Any) -> Any:
    one = b.insert_element(ir.Constant(_FLOATS, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


def _multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    name = "llvm.fmuladd.f32" if x.type == _FLOAT else f"llvm.fmuladd.v{LANES}f32"
    function = b.module.declare_intrinsic(name, (), ir.FunctionType(x.type, [x.type] * 3))
    return b.call(function, [x, y, z])


_Q4_0, _Q4_1 = Blocks(32, 18, _add_q4_0), Blocks(32, 20, _add_q4_1)
_Q8_0, _F32 = Blocks(32, 34, _add_q8_0), Blocks(LANES, 4 * LANES, _add_f32)
q4_0_row, q4_0_rows = _dots(_Q4_0, 1), _dots(_Q4_0, 4)
q4_1_row, q4_1_rows = _dots(_Q4_1, 1), _dots(_Q4_1, 4)
q8_0_row, q8_0_rows = _dots(_Q8_0, 1), _dots(_Q8_0, 4)
f32_row, f32_rows = _dots(_F32, 1), _dots(_F32, 4)
mix_16, mix_64 = _mix(1), _mix(4)
