"""Which turn plays next. Pure: no torch, asyncio, threading or clock; times are passed in, in seconds of one clock.

Turns wait in the order of their arrival within their priority. Up to `active_turns` play, a slice of tokens each in
rotation. A turn whose reader is behind is paused: it keeps its slot and lets others have its place.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    queue: turns that may wait.
    active_turns: turns that share the engine at token boundaries.
    slots: turns that may hold a context, playing or paused.
    slice_tokens: tokens that a turn makes before the next one plays; a prefill chunk is a whole slice. More than one
        would save nothing: a change of turns is one small copy, and gaps would grow with the slice.
    reader_window: events that a reader may be behind before its turn is paused.
    reader_patience_s: how long a turn may stay paused before it ends.
    host_kv_bytes: host memory for keys and values of idle sessions.
    """

    queue: int = 16
    active_turns: int = 1
    slots: int = 4
    slice_tokens: int = 1
    reader_window: int = 256
    reader_patience_s: float = 30.0
    host_kv_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("active_turns", "slots", "slice_tokens", "reader_window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("queue", "host_kv_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative; got {getattr(self, name)}")
        if self.active_turns > self.slots:
            raise ValueError(f"active_turns ({self.active_turns}) must not exceed slots ({self.slots})")


class TurnState(StrEnum):
    """Where a turn stands. One that the scheduler does not hold is absent."""

    ABSENT = "absent"
    WAITING = "waiting"
    PLAYING = "playing"
    PAUSED = "paused"
    READY = "ready"


class TurnAct(StrEnum):
    """What is done to a turn."""

    ENQUEUE = "enqueue"
    PLAY = "play"
    PAUSE = "pause"
    RESUME = "resume"
    END = "end"


TRANSITIONS: Mapping[tuple[TurnState, TurnAct], TurnState] = {
    (TurnState.ABSENT, TurnAct.ENQUEUE): TurnState.WAITING,
    (TurnState.WAITING, TurnAct.PLAY): TurnState.PLAYING,
    (TurnState.READY, TurnAct.PLAY): TurnState.PLAYING,
    (TurnState.PLAYING, TurnAct.PAUSE): TurnState.PAUSED,
    (TurnState.READY, TurnAct.PAUSE): TurnState.PAUSED,
    (TurnState.PAUSED, TurnAct.RESUME): TurnState.READY,
    (TurnState.WAITING, TurnAct.END): TurnState.ABSENT,
    (TurnState.PLAYING, TurnAct.END): TurnState.ABSENT,
    (TurnState.PAUSED, TurnAct.END): TurnState.ABSENT,
    (TurnState.READY, TurnAct.END): TurnState.ABSENT,
}


class TurnStateError(Exception):
    """A programmer asked for what the table does not hold."""


class Expiry(StrEnum):
    """Why a turn's time is over."""

    DEADLINE = "deadline"
    SLOW_READER = "slow_reader"


@dataclass(slots=True)
class _Turn:
    turn_id: int
    session: Hashable | None
    priority: int
    deadline_s: float
    state: TurnState = TurnState.WAITING
    slice_left: int = 0
    paused_until_s: float = inf

    @property
    def ends_s(self) -> float:
        """When its time is over, if nothing happens before."""
        return min(self.deadline_s, self.paused_until_s)


class Scheduler:
    """The order of turns. Ids are the caller's; `session` is anything hashable, None for a turn without one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turns: dict[int, _Turn] = {}
        self._rotation: list[_Turn] = []

    def state(self, turn_id: int) -> TurnState:
        """Where this turn stands."""
        return self._turns[turn_id].state if turn_id in self._turns else TurnState.ABSENT

    def ids(self, *states: TurnState) -> list[int]:
        """Turns in any of these states, in the order of their arrival."""
        return [turn.turn_id for turn in self._turns.values() if turn.state in states]

    def enqueue(
        self, turn_id: int, session: Hashable | None = None, priority: int = 0, deadline_s: float | None = None
    ) -> None:
        """A new turn waits."""
        self._check(turn_id, TurnAct.ENQUEUE)
        self._turns[turn_id] = _Turn(turn_id, session, priority, inf if deadline_s is None else deadline_s)

    def next_turn(self) -> int | None:
        """The turn that makes the next step, or None when nobody can play. Gives free places away first."""
        while len(self._rotation) < self._limits.active_turns and (turn := self._next_for_a_place()) is not None:
            self._move(turn.turn_id, TurnAct.PLAY)
            turn.slice_left = self._limits.slice_tokens
            self._rotation.append(turn)
        return self._rotation[0].turn_id if self._rotation else None

    def played_token(self, turn_id: int) -> None:
        """The playing turn made one token; its slice may be over."""
        turn = self._playing(turn_id)
        turn.slice_left -= 1
        if turn.slice_left <= 0:
            self._pass_on(turn)

    def played_chunk(self, turn_id: int) -> None:
        """The playing turn prefilled one chunk, which is a whole slice."""
        self._pass_on(self._playing(turn_id))

    def pause(self, turn_id: int, now_s: float) -> None:
        """Its reader is behind: others may have its place."""
        turn = self._move(turn_id, TurnAct.PAUSE)
        turn.paused_until_s = now_s + self._limits.reader_patience_s
        self._leave_rotation(turn)

    def resume(self, turn_id: int) -> None:
        """Its reader has caught up: it has the next free place, before any waiting turn."""
        self._move(turn_id, TurnAct.RESUME).paused_until_s = inf

    def end(self, turn_id: int) -> None:
        """The turn is over, whatever the reason."""
        turn = self._move(turn_id, TurnAct.END)
        self._leave_rotation(turn)
        del self._turns[turn_id]

    def expired(self, now_s: float) -> list[tuple[int, Expiry]]:
        """Turns whose time is over. They stay until `end`."""
        return [
            (turn.turn_id, Expiry.DEADLINE if turn.deadline_s <= now_s else Expiry.SLOW_READER)
            for turn in self._turns.values()
            if turn.ends_s <= now_s
        ]

    def next_expiry_s(self) -> float:
        """When the next turn's time is over; infinity if never."""
        return min((turn.ends_s for turn in self._turns.values()), default=inf)

    def _next_for_a_place(self) -> _Turn | None:
        """READY before WAITING; then the higher priority; then who came first. A session plays one turn at once."""
        holding = [turn for turn in self._turns.values() if turn.state is not TurnState.WAITING]
        sessions = {turn.session for turn in holding if turn.session is not None}
        candidates = [turn for turn in holding if turn.state is TurnState.READY]
        if not candidates and len(holding) < self._limits.slots:
            candidates = [
                turn
                for turn in self._turns.values()
                if turn.state is TurnState.WAITING and (turn.session is None or turn.session not in sessions)
            ]
        return max(candidates, key=lambda turn: turn.priority, default=None)  # max keeps the first of equals

    def _playing(self, turn_id: int) -> _Turn:
        if self.state(turn_id) is not TurnState.PLAYING:
            raise TurnStateError(f"turn {turn_id} made a step while it was {self.state(turn_id)}")
        return self._turns[turn_id]

    def _pass_on(self, turn: _Turn) -> None:
        turn.slice_left = self._limits.slice_tokens
        self._leave_rotation(turn)
        self._rotation.append(turn)

    def _leave_rotation(self, turn: _Turn) -> None:
        self._rotation = [other for other in self._rotation if other is not turn]

    def _check(self, turn_id: int, act: TurnAct) -> TurnState:
        state = self.state(turn_id)
        if (state, act) not in TRANSITIONS:
            raise TurnStateError(f"cannot {act} turn {turn_id}: it is {state}")
        return TRANSITIONS[state, act]

    def _move(self, turn_id: int, act: TurnAct) -> _Turn:
        state = self._check(turn_id, act)
        turn = self._turns[turn_id]
        turn.state = state
        return turn
