"""Plays one step at a time: a replay where there is a graph for it, the same body eagerly where there is none.

Results travel to the host through a small ring of pinned buffers, so that the next replay can be enqueued before the
last id is read, and nothing inside a step waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig
from engine.events import CaptureCause, EagerReason, Listener, PrefillDone, StepDone, VerifyMismatch
from engine.graph import GraphPool
from engine.known import KnownRows
from engine.model import Decoder
from engine.outputs import Token
from engine.params import SamplingParams
from engine.player import Player
from engine.sampler import Choice, Stages
from engine.shapes import ChunkShape, KnownShape, Shape, StepShape, buckets

if TYPE_CHECKING:
    from engine.prefill import ChunkPrefill

_LOGITS_TOLERANCE = 1e-3  # of their norm: a graph that reads what it should not errs by far more
_RING_DEPTH = 4  # steps of one slot that may be on their way; two are


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was enqueued: where its result will be, and how it was run."""

    landing: Choice
    landed: torch.cuda.Event | None
    graph: str | None
    eager: EagerReason | None
    enqueued_s: float


class Stepper:
    """Owns the graphs and the way of results to the host."""

    def __init__(self, player: Player, config: EngineConfig, context: int, slots: int, listener: Listener) -> None:
        self._player = player
        self._config = config
        self._context = context
        self._listener = listener
        device = player.buffers.logits.device
        self._on_cuda = device.type == "cuda"
        self._buckets = buckets(context)
        asked = config.graph_context or context
        covered = [bucket for bucket in self._buckets if bucket <= asked]
        self.graph_context = max(covered, default=0)  # longest context that a replay reads
        self.graphs = GraphPool(self._run, listener)
        self._chunks: ChunkPrefill | None = None
        if self._on_cuda and isinstance(player, Decoder):
            from engine.prefill import ChunkPrefill  # its kernels need Triton, which a CPU may lack

            self._chunks = ChunkPrefill(player, config.prefill_chunk)
        self._known = KnownRows(player, player.widths) if isinstance(player, Decoder) and player.widths else None
        self._shapes: list[Shape] = [
            *(StepShape(bucket, 1, Stages(stages)) for bucket in covered for stages in config.graph_stages),
            *(KnownShape(bucket, rows) for bucket in covered for rows in (self._known.widths if self._known else ())),
            *(self._chunks.shapes if self._chunks else ()),
        ]
        self._active: int | None = None
        self._landed_s = 0.0
        self._steps = 0
        self._self_check_failed = False
        self._device = device
        self._slot_ids = torch.arange(slots, dtype=torch.int64, device=device).view(slots, 1)
        depth = _RING_DEPTH if self._on_cuda else 1
        self._ring = [
            [Choice.allocate(torch.device("cpu"), pinned=self._on_cuda) for _ in range(depth)] for _ in range(slots)
        ]
        self._events = [[torch.cuda.Event() for _ in range(depth)] for _ in range(slots)] if self._on_cuda else []
        self._turns = [0] * slots

    @property
    def lookahead(self) -> int:
        """Steps to enqueue beyond the one that is waited for. On the CPU a step runs when it is enqueued."""
        return 1 if self._on_cuda else 0

    @property
    def why_eager(self) -> EagerReason | None:
        """Why decode steps are not replays; None where they are. Told of the shortest that a graph was asked for."""
        short = [shape for shape in self._shapes if isinstance(shape, StepShape) and shape.bucket == self._buckets[0]]
        shape = short[0] if short else StepShape(self._buckets[0], 1, Stages.GREEDY)
        return None if self.graphs.get(shape) is not None and not self._self_check_failed else self._why_eager(shape)

    @property
    def complete(self) -> bool:
        """Whether every graph that is configured was captured and may be replayed."""
        return len(self.graphs) == self.wanted and not self._self_check_failed

    @property
    def wanted(self) -> int:
        """How many graphs the configuration asks for."""
        return len(self._shapes)

    @property
    def captured_steps(self) -> tuple[StepShape, ...]:
        """Decode steps that are replays."""
        return tuple(shape for shape in self.graphs.shapes if isinstance(shape, StepShape))

    def capture(self, cause: CaptureCause) -> None:
        """Capture the pool, after one eager step of each shape has warmed kernels and libraries up."""
        if not self._on_cuda or self._config.graphs == "off":
            return
        for shape in self._shapes:
            started_s = time.perf_counter()
            self._run(shape)
            torch.cuda.current_stream().synchronize()
            self._listener(StepDone(None, EagerReason.WARMING_UP, time.perf_counter() - started_s))
        self.graphs.capture(self._shapes, cause)
        self._active = None

    def drop_graphs(self) -> None:
        """Forget every graph and give their memory back."""
        if self._on_cuda:
            self.graphs.clear()
        self._active = None

    def prefill(self, slot: int, start: int, ids: Sequence[int]) -> PrefillDone:
        """Fill positions start .. start + len(ids) - 1 of the slot's cache, and wait for it."""
        started_s = time.perf_counter()
        if self._chunks is None:
            self._player.prefill(slot, start, torch.tensor(ids, dtype=torch.int64, device=self._device))
            if self._on_cuda:
                torch.cuda.current_stream().synchronize()
            why = None if self._on_cuda else EagerReason.NO_CUDA
            return PrefillDone(len(ids), time.perf_counter() - started_s, None, why)
        shape = self._chunks.shape_for(len(ids))
        self._chunks.place(slot, start, ids)
        graph = self.graphs.get(shape)
        eager = None if graph is not None else self._why_eager(shape)
        if graph is None:
            self._run(shape)
        else:
            graph.replay()
        torch.cuda.current_stream().synchronize()
        return PrefillDone(len(ids), time.perf_counter() - started_s, shape.name if graph is not None else None, eager)

    def begin(self, slot: int, token_id: int, position: int) -> None:
        """Set the slot so that its next step reads `token_id` at `position`."""
        slots = self._player.buffers.slots
        slots.token[slot] = token_id
        slots.position[slot] = position
        slots.stopped[slot] = False
        if self._active == slot:
            self._active = None  # what is ready for its next step belongs to another token

    def width_for(self, tokens: int) -> int | None:
        """The widest step of known ids that so many fill, or None where there is none."""
        return None if self._known is None else self._known.width_for(tokens)

    def repeat(self, slot: int, position: int, ids: Sequence[int]) -> EagerReason | None:
        """Make keys and values of known ids, as many as `width_for` said, in one step from `position` on. Waits.

        Returns why that step was no replay, or None.
        """
        assert self._known is not None, "width_for() was None"
        started_s = time.perf_counter()
        slots = self._player.buffers.slots
        slots.active.copy_(self._slot_ids[slot])
        slots.position[slot] = position
        self._active = None  # what is ready for a next step is no longer what it should be
        self._known.place(ids)
        end = position + len(ids) - 1
        shape = KnownShape(next(size for size in self._buckets if size > end), len(ids))
        graph = self.graphs.get(shape)
        eager = None if graph is not None and not self._self_check_failed else self._why_eager(shape)
        if graph is None or eager is not None:
            self._run(shape)
        else:
            graph.replay()
        torch.cuda.current_stream().synchronize()
        self._listener(StepDone(None if eager else shape.name, eager, time.perf_counter() - started_s))
        return eager

    def play(self, slot: int, position: int, params: SamplingParams) -> Flight:
        """Enqueue the slot's next step, which reads the token at `position`. Does not wait."""
        enqueued_s = time.perf_counter()
        self._activate(slot)
        stages = Stages.of(params)
        shape = StepShape(next(size for size in self._buckets if size > position), 1, stages)
        graph = self.graphs.get(shape)
        eager = None if graph is not None and not self._self_check_failed else self._why_eager(shape)
        self._steps += 1
        if graph is None or eager is not None:
            self._player.step(shape)
        elif self._config.verify_every and self._steps % self._config.verify_every == 0:
            self._replay_verified(graph, shape, slot, position)
        else:
            graph.replay()
        return self._send(slot, stages, shape.name if eager is None else None, eager, enqueued_s)

    def land(self, flight: Flight, params: SamplingParams, end_ids: frozenset[int]) -> Token:
        """Wait for a step's result."""
        if flight.landed is not None:
            flight.landed.synchronize()
        now_s = time.perf_counter()
        self._listener(StepDone(flight.graph, flight.eager, now_s - max(flight.enqueued_s, self._landed_s)))
        self._landed_s = now_s
        token_id = int(flight.landing.token_id)
        end = token_id in end_ids or token_id in params.stop_token_ids
        if not params.logprobs:
            return Token(token_id, end, flight.eager)
        top = zip(flight.landing.top_ids.tolist(), flight.landing.top_logprobs.tolist(), strict=True)
        chosen = float(flight.landing.logprob)
        return Token(token_id, end, flight.eager, chosen, tuple(top)[: params.top_logprobs])

    def check(self, shape: StepShape, slot: int, params: SamplingParams, token_id: int) -> bool:
        """Whether replay and eager twin agree on the last step that `shape` is for, in a slot that nobody plays.

        What the slot's turn was set up with is lost; what lies before that step in its cache is not.
        """
        graph, b = self.graphs.get(shape), self._player.buffers
        assert graph is not None, "only captured steps are checked"
        results = []
        for replayed in (False, True):
            b.sampler.write(slot, params, (token_id,), ())
            self.begin(slot, token_id, shape.bucket - 1)
            self._activate(slot)
            if replayed:
                graph.replay()
            else:
                self._player.step(shape)
            results.append((int(b.choice.token_id), b.logits[-1].clone()))
        self._active = None
        (eager_id, eager_logits), (replayed_id, replayed_logits) = results
        error = float((replayed_logits - eager_logits).norm()) / max(float(eager_logits.norm()), 1e-30)
        if replayed_id == eager_id and error <= _LOGITS_TOLERANCE:
            return True
        self._self_check_failed = True
        self._listener(VerifyMismatch(shape.name, shape.bucket - 1, replayed_id, eager_id))
        return False

    def _run(self, shape: Shape) -> None:
        """What a shape's graph replays, eagerly."""
        if isinstance(shape, StepShape):
            self._player.step(shape)
        elif isinstance(shape, KnownShape) and self._known is not None:
            self._known.run(shape)
        elif isinstance(shape, ChunkShape) and self._chunks is not None:
            self._chunks.run(shape)

    def _activate(self, slot: int) -> None:
        if self._active == slot:
            return
        self._player.buffers.slots.active.copy_(self._slot_ids[slot])
        self._player.embed()
        self._active = slot

    def _why_eager(self, shape: StepShape | KnownShape | ChunkShape) -> EagerReason:
        if not self._on_cuda:
            return EagerReason.NO_CUDA
        if self._config.graphs == "off":
            return EagerReason.DISABLED
        if not isinstance(shape, ChunkShape):
            if self._self_check_failed:
                return EagerReason.SELF_CHECK_FAILED
            if shape.bucket > self.graph_context:
                return EagerReason.CONTEXT_BEYOND_GRAPHS
        failed = self.graphs.why_not(shape)
        return EagerReason.UNSUPPORTED_REQUEST if failed is None else failed

    def _send(
        self, slot: int, stages: Stages, graph: str | None, eager: EagerReason | None, enqueued_s: float
    ) -> Flight:
        turn = self._turns[slot]
        self._turns[slot] = (turn + 1) % len(self._ring[slot])
        choice, landing = self._player.buffers.choice, self._ring[slot][turn]
        landing.token_id.copy_(choice.token_id, non_blocking=True)
        if stages is Stages.LOGPROBS:
            landing.logprob.copy_(choice.logprob, non_blocking=True)
            landing.top_ids.copy_(choice.top_ids, non_blocking=True)
            landing.top_logprobs.copy_(choice.top_logprobs, non_blocking=True)
        landed = None
        if self._on_cuda:
            landed = self._events[slot][turn]
            landed.record()
        return Flight(landing, landed, graph, eager, enqueued_s)

    def _replay_verified(self, graph: torch.cuda.CUDAGraph, shape: StepShape, slot: int, position: int) -> None:
        """Run the step eagerly, put the slot back, replay it, and compare the two ids. Waits: for people who debug."""
        b = self._player.buffers
        state = (b.slots.token, b.slots.position, b.slots.stopped, b.sampler.counts, b.sampler.seen)
        before = [tensor.clone() for tensor in state]
        self._player.step(shape)
        eager_id = int(b.choice.token_id)
        for tensor, saved in zip(state, before, strict=True):
            tensor.copy_(saved)
        self._player.embed()
        graph.replay()
        replayed_id = int(b.choice.token_id)
        if replayed_id != eager_id:
            self._self_check_failed = True
            self._listener(VerifyMismatch(shape.name, position, replayed_id, eager_id))
