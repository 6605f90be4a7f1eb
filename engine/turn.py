"""One turn: what the context holds is kept, the rest of the prompt is read in chunks, then every token is one step.

Prefill fills the cache for all but the last prompt token. That one is the first to go through the decode step, whose
choice is the answer's first token. So prefill has no sampler of its own, and the count of steps is the count of tokens.

An answer that was broken off is resumed by repeating it: earlier keys and values are made again as they were made,
and the emitted ids go through the decode step once more, whose choices must be those very ids. Where steps of several
rows give the same bits, the emitted ids are taken at their word, but for the last: a step has to choose that one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch

from engine import faults
from engine.cache import Context
from engine.errors import ReplayError
from engine.events import EagerReason, Listener
from engine.history import Made, Resumption, Segment, chunks, covered, cut, placed, reusable
from engine.mask import Constraint, Masks
from engine.outputs import Prefilled, Replayed, Token, TurnStep
from engine.params import SamplingParams
from engine.player import Player
from engine.stepper import Flight, Stepper

_FILLER_ID = 0  # stands for ids of a repeated chunk whose keys and values were not kept: no earlier row sees it
_FORCED = SamplingParams()  # the choice of a step that repeats an earlier turn's token is not looked at


@dataclass(frozen=True, slots=True)
class Score:
    """What a turn is to play.

    Attributes:
        known: the prompt, and the ids of the answer that were emitted before.
        prompt: how many of `known` are the prompt.
        history: how a prefix of the prompt was made before the turn.
        read: ids that are read in chunks, all but the last of them; those after are made by steps.
        kept: positions of the context that serve as they are.
    """

    known: tuple[int, ...]
    prompt: int
    history: tuple[Segment, ...]
    read: int
    kept: int

    def to_make(self, chunk: int) -> Generator[tuple[int, Segment], None, None]:
        """What is to be made before the first step, each with its first position."""
        for start, segment in placed(_before_steps(self.history, self.read, chunk)):
            end = start + segment.tokens
            if end > self.kept:
                begin = max(start, self.kept) if segment.made is Made.DECODE else start
                yield begin, Segment(segment.made, end - begin, segment.rows)


def score(context: Context, prompt_ids: Sequence[int], resumption: Resumption | None, chunk: int) -> Score:
    """Decide what can be kept of a context, and how the rest is to be made."""
    prompt = tuple(prompt_ids)
    if resumption is None or not resumption.exact:
        known = prompt if resumption is None else prompt + resumption.emitted
        kept = min(context.shared_prefix(known), len(known) - 1)
        return Score(known, len(prompt), tuple(cut(context.segments, kept)), len(known), kept)
    known = prompt + resumption.emitted
    read = len(prompt) + resumption.read
    wanted = [*_before_steps(resumption.history, read, chunk), Segment(Made.DECODE, len(known) - read, 1)]
    held = min(context.shared_prefix(known), len(known) - 1)
    return Score(known, len(prompt), resumption.history, read, reusable(context.segments, wanted, held))


def _before_steps(history: Sequence[Segment], read: int, chunk: int) -> list[Segment]:
    return [*history, *chunks(covered(history), read - 1, chunk)]


class Turns:
    """Plays turns on one stepper, each a generator. `limit` is a context's length in tokens."""

    def __init__(
        self, player: Player, stepper: Stepper, chunk: int, limit: int, end_ids: frozenset[int], listener: Listener
    ) -> None:
        self._sampler = player.buffers.sampler
        self._masks = Masks(self._sampler)
        self._stepper = stepper
        self._chunk = chunk
        self._limit = limit
        self._end_ids = end_ids
        self._listener = listener

    def play(
        self, context: Context, prompt_ids: Sequence[int], params: SamplingParams, resumption: Resumption | None
    ) -> Generator[TurnStep, None, None]:
        """See Engine.generate."""
        context.busy = True
        try:
            plan = score(context, prompt_ids, resumption, self._chunk)
            context.keep(plan.kept)
            cached, total = min(plan.kept, plan.prompt), plan.read
            yield Prefilled(cached, cached, total, plan.history, plan.read - plan.prompt)
            for start, segment in plan.to_make(self._chunk):
                ids = plan.known[start : start + segment.tokens]
                if segment.made is Made.PREFILL:
                    self._prefill(context, ids, segment.rows)
                    yield Prefilled(cached, min(len(context.ids), total), total)
                else:
                    yield from self._repeat(context, ids)
            if self._stepper.width_for(len(plan.known)) is not None:
                yield from self._repeat(context, plan.known[len(context.ids) : -2])
            yield from self._decode(context, plan, params)
        finally:
            context.busy = False

    def _decode(self, context: Context, plan: Score, params: SamplingParams) -> Generator[Token | Replayed, None, None]:
        room = self._limit - plan.prompt + 1
        budget = room if params.max_tokens is None else min(room, params.max_tokens)
        known, first = plan.known, max(plan.read - 1, len(context.ids))
        steps = plan.prompt + budget - 1 - first
        if len(known) - plan.prompt >= budget:
            return
        next_id = known[first]
        in_flight: deque[Flight] = deque()
        self._begin(context, plan, first, params)
        constraint = self._masks.begin(context.slot, params, known[plan.prompt : first + 1])
        ahead = self._stepper.lookahead
        enqueued = 0
        for made in range(steps):
            while enqueued < min(steps, made + 1 + (ahead if constraint is None else 0)):
                in_flight.append(self._play(context, first + enqueued, params, constraint))
                enqueued += 1
            token = self._land(in_flight.popleft(), params)
            context.append(Made.DECODE, (next_id,))
            next_id = token.token_id
            if constraint is not None and not token.end:
                constraint.take(next_id)
                if ahead and enqueued < steps:  # the next mask needs this choice, but not its reader
                    in_flight.append(self._play(context, first + enqueued, params, constraint))
                    enqueued += 1
            place = first + made + 1
            if place < len(known):
                _check_repeated(known[place], next_id, place - plan.prompt)
                yield Replayed(token.eager)
                continue
            yield token
            if token.end:
                return

    def _repeat(self, context: Context, ids: Sequence[int]) -> Generator[Replayed, None, None]:
        """Make keys and values of known ids by decode steps: of several rows where their bits are those of one."""
        rest = tuple(ids)
        while rest:
            rows = self._stepper.width_for(len(rest))
            done, rest = rest[: rows or 1], rest[rows or 1 :]
            eager = (
                self._land(self._force(context, done[0]), _FORCED).eager if rows is None else self._rows(context, done)
            )
            context.append(Made.DECODE, done)
            for _ in done:
                yield Replayed(eager)

    @torch.inference_mode()
    def _begin(self, context: Context, plan: Score, first: int, params: SamplingParams) -> None:
        """Set the slot up so that its next step reads the id at position `first`."""
        answered = plan.known[plan.prompt : first + 1]
        with faults.named():
            self._sampler.write(context.slot, params, plan.known[: plan.prompt], sorted(self._end_ids), answered)
            self._stepper.begin(context.slot, plan.known[first], first)

    @torch.inference_mode()
    def _prefill(self, context: Context, ids: Sequence[int], rows: int) -> None:
        filler = (_FILLER_ID,) * (rows - len(ids))
        with faults.named("reading the prompt"):
            done = self._stepper.prefill(context.slot, len(context.ids), [*ids, *filler])
        context.append(Made.PREFILL, ids, rows)
        self._listener(replace(done, tokens=len(ids)))

    @torch.inference_mode()
    def _force(self, context: Context, token_id: int) -> Flight:
        position = len(context.ids)
        with faults.named():
            self._stepper.begin(context.slot, token_id, position)
            return self._stepper.play(context.slot, position, _FORCED)

    @torch.inference_mode()
    def _rows(self, context: Context, ids: Sequence[int]) -> EagerReason | None:
        with faults.named():
            return self._stepper.repeat(context.slot, len(context.ids), ids)

    @torch.inference_mode()
    def _play(self, context: Context, position: int, params: SamplingParams, constraint: Constraint | None) -> Flight:
        with faults.named():
            if constraint is not None:
                constraint.send()
            return self._stepper.play(context.slot, position, params)

    def _land(self, flight: Flight, params: SamplingParams) -> Token:
        with faults.named():
            return self._stepper.land(flight, params, self._end_ids)


def _check_repeated(emitted: int, made: int, index: int) -> None:
    if made != emitted:
        raise ReplayError(index, emitted, made)
