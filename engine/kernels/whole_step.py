"""The compiled step of `engine.kernels.quantised` on an engine's own weights, cache and buffers, with its threads."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.kernels import quantised as q
from engine.kernels.ops import DecoderWeights
from engine.kernels.packed import PackedDecoder, PackedMatrix

if TYPE_CHECKING:
    from engine.model import StepBuffers

_CHUNK_BYTES = 16 << 10  # long enough to pay for a claim, short enough to share a small matrix evenly
_LARGEST_SHARE = 1 / 16  # of a thread's part that one chunk may be
_C = ctypes.CDLL(None)


class WholeStep:
    """Plays layers and head of one row: from `buffers.x` to `buffers.logits`, keys and values into the cache.

    `cache` `[layers, 2, slots, kv_heads, context, head_dim]` float32. The weights carry `packed`. `threads` of them
    play: the caller, and helpers that sleep between steps.
    """

    def __init__(
        self, weights: DecoderWeights, buffers: StepBuffers, cache: torch.Tensor, eps: float, threads: int
    ) -> None:
        assert weights.packed is not None, "only packed weights are played from their blocks"
        self._kept = memory = _Memory()
        self._helpers = threads - 1
        self._score = _score(memory, weights, weights.packed, buffers, cache, eps, threads)
        _C.sem_init(ctypes.c_void_p(self._score.wake), 0, 0)
        for helper in range(self._helpers):
            threading.Thread(
                target=_help, args=(memory, self._score, helper + 1), name=f"decode-{helper + 1}", daemon=True
            ).start()
        self._end = weakref.finalize(self, _dismiss, memory, self._score, self._helpers)

    def play(self) -> None:
        """Play the active slot's next token as far as its logits."""
        q.take_part(self._score, 0, self._helpers)

    def close(self) -> None:
        """Let the helpers go."""
        self._end()


class _Memory:
    """Keeps what compiled code has the addresses of."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def __call__(self, data: torch.Tensor | Any) -> int:
        """The address of a contiguous tensor or array, which is kept."""
        assert data.is_contiguous() if isinstance(data, torch.Tensor) else data.flags.c_contiguous
        self._kept.append(data)
        return int(data.data_ptr() if isinstance(data, torch.Tensor) else data.ctypes.data)

    def zeros(self, count: int) -> int:
        """`count` zero bytes that begin a line."""
        start = self(np.zeros(count + q.LINE, dtype=np.uint8))
        return start + -start % q.LINE


def _help(memory: _Memory, score: q.Score, me: int) -> None:
    """A helper's whole life. It holds `memory`, so that nothing is given back under it."""
    q.take_part(score, me, 0)
    del memory


def _dismiss(memory: _Memory, score: q.Score, helpers: int) -> None:
    """Let the helpers go."""
    ctypes.c_int64.from_address(score.stop).value = 1
    for _ in range(helpers):
        _C.sem_post(ctypes.c_void_p(score.wake))
    del memory  # until here


def _score(
    keep: _Memory,
    weights: DecoderWeights,
    packed: PackedDecoder,
    buffers: StepBuffers,
    cache: torch.Tensor,
    eps: float,
    threads: int,
) -> q.Score:
    _, _, slots, kv_heads, context, head_dim = cache.shape
    b = buffers
    x, qkv, attended, hidden = keep(b.x), keep(b.qkv), keep(b.attended), keep(b.hidden)

    def product(what: int, source: int, target: int, norm: torch.Tensor | None, matrix: PackedMatrix) -> list[int]:
        rows = matrix.rows // 2 if what == q.GATE else matrix.rows
        address = 0 if norm is None else keep(norm)
        step = _rows_a_chunk(matrix, rows, threads)
        return [what, source, target, address, keep(matrix.data), q.KINDS[matrix.kind], matrix.blocks, rows, step, 0]

    stages = []
    for index, layer in enumerate(packed.layers):
        stages.append(product(q.STORE, x, qkv, layer.input_norm, layer.qkv))
        stages.append([q.ATTEND, 0, 0, 0, 0, 0, 0, kv_heads, 1, index])
        stages.append(product(q.ADD, attended, x, None, layer.out))
        stages.append(product(q.GATE, x, hidden, layer.ffn_norm, layer.gate_up))
        stages.append(product(q.ADD, hidden, x, None, layer.down))
    stages.append(product(q.STORE, x, keep(b.logits), packed.final_norm, packed.head))
    biases = [layer.qkv.bias for layer in weights.layers if layer.qkv.bias is not None]
    head_norms = [n for layer in weights.layers for n in (layer.q_norm, layer.k_norm) if n is not None]

    longest = max(b.x.shape[1], b.attended.shape[1], b.hidden.shape[1])
    parts = [longest, longest // 32, 2 * max(stage[8] for stage in stages), context, head_dim]
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + (4 * part // q.LINE + 1) * q.LINE)
    shared = keep.zeros((2 * len(stages) + 3) * q.LINE)
    after = shared + 2 * len(stages) * q.LINE
    return q.Score(
        stages=keep(np.array(stages, dtype=np.int64)),
        stage_count=len(stages),
        heads=b.attended.shape[1] // head_dim,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slots=slots,
        context=context,
        eps=float(eps),
        biases=keep(torch.stack(biases)) if biases else 0,
        head_norms=keep(torch.stack(head_norms)) if head_norms else 0,
        cos=keep(weights.rope_cos),
        sin=keep(weights.rope_sin),
        cache=keep(cache),
        qkv=qkv,
        attended=attended,
        active=keep(b.slots.active),
        position=keep(b.slots.position),
        scratch=keep.zeros(threads * starts[-1]),
        scratch_bytes=starts[-1],
        sums=starts[1],
        outputs=starts[2],
        scores=starts[3],
        query=starts[4],
        counters=shared,
        generation=after,
        stop=after + q.LINE,
        wake=after + 2 * q.LINE,
    )


def _rows_a_chunk(matrix: PackedMatrix, rows: int, threads: int) -> int:
    """A multiple of four; one chunk where the matrix is small."""
    whole = rows * matrix.data.shape[1]
    largest = max(_CHUNK_BYTES, int(whole * _LARGEST_SHARE / threads))
    return max(4, largest * rows // whole // 4 * 4)
