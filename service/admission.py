"""Who is let in, and how long they would wait. Pure: no torch, asyncio, threading or clock; times are passed in.

It counts what was let in and has not ended, so its bound is exact whatever the engine's thread is doing, and a refusal
never waits for a step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from service.errors import (
    DeadlineExceededError,
    DeadlineUnmeetableError,
    DrainingError,
    QueueFullError,
    SessionBusyError,
)
from service.events import TurnRequest
from service.scheduler import Limits

TURNS_PER_SESSION: Final = 2  # one plays, one waits
RETRY_AT_LEAST_S: Final = 0.1
RETRY_AT_MOST_S: Final = 60.0
NEW_WEIGHT: Final = 0.1  # of the newest observation in the running means


class _Mean:
    """A running mean that begins with its first observation; 0 before it."""

    def __init__(self) -> None:
        self.value = 0.0
        self._empty = True

    def add(self, observation: float) -> None:
        self.value += (observation - self.value) * (1.0 if self._empty else NEW_WEIGHT)
        self._empty = False


@dataclass(slots=True)
class _Admitted:
    prompt_tokens: int  # to be read
    max_tokens: int | None
    session: Hashable | None
    started_s: float | None = None


class Admission:
    """The bound on turns in flight, and the estimate of waiting. Knows nothing before the first turn: predicts 0."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._admitted: dict[int, _Admitted] = {}
        self._prefill_s_per_token = _Mean()
        self._token_s = _Mean()
        self._tokens_per_turn = _Mean()
        self._read: dict[Hashable, int] = {}
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Turns let in that have not ended."""
        return len(self._admitted)

    @property
    def active(self) -> int:
        """Turns that have left the queue."""
        return sum(turn.started_s is not None for turn in self._admitted.values())

    @property
    def queued(self) -> int:
        """Turns that wait."""
        return self.in_flight - self.active

    @property
    def token_s(self) -> float:
        """Running mean of decode steps, seconds."""
        return self._token_s.value

    def admit(self, turn_id: int, request: TurnRequest, session: Hashable | None, now_s: float) -> None:
        """Lets the turn in, or raises why not: draining, no room, deadline, session."""
        if self.draining:
            raise DrainingError
        if self.in_flight >= self._limits.active_turns + self._limits.queue:
            raise QueueFullError(self._limits.queue, self._retry_after_s(self._next_end_s(now_s)))
        turn = _Admitted(self._to_read(request, session), request.sampling.max_tokens, session)
        if request.deadline_s is not None:
            self._check_deadline(request, turn, request.deadline_s - now_s, now_s)
        if session is not None:
            of_session = sum(turn.session == session for turn in self._admitted.values())
            if of_session >= TURNS_PER_SESSION:
                raise SessionBusyError(request.session_id)
        self._admitted[turn_id] = turn
        if session is not None:
            self._remember(session, len(request.prompt_ids))

    def started(self, turn_id: int, now_s: float) -> None:
        """The turn left the queue."""
        if turn_id in self._admitted:
            self._admitted[turn_id].started_s = now_s

    def leaves(self, turn_id: int) -> None:
        """The turn is broken off: one that waits is gone at once, one that plays counts until its step has ended."""
        turn = self._admitted.get(turn_id)
        if turn is None:
            return
        if turn.started_s is None:
            del self._admitted[turn_id]
        else:
            turn.session = None  # its session may ask again now

    def ended(self, turn_id: int) -> None:
        """The turn is over. One that left before is not there any more."""
        self._admitted.pop(turn_id, None)

    def learn_prefill(self, tokens: int, seconds: float) -> None:
        """A prompt of so many uncached tokens took so long."""
        if tokens > 0:
            self._prefill_s_per_token.add(seconds / tokens)

    def learn_token(self, seconds: float) -> None:
        """A decode step took so long."""
        self._token_s.add(seconds)

    def learn_turn(self, tokens: int) -> None:
        """A turn that was not broken off had so many tokens."""
        self._tokens_per_turn.add(tokens)

    def predicted_wait_s(self, now_s: float) -> float:
        """What a new turn would wait before its prompt is read, seconds."""
        ahead = self.in_flight
        must_end = ahead - self._limits.active_turns + 1
        if must_end <= 0:
            return 0.0
        left_s = sum(self._left_s(turn, now_s) for turn in self._admitted.values())
        return left_s * must_end / ahead

    def _check_deadline(self, request: TurnRequest, turn: _Admitted, left_s: float, now_s: float) -> None:
        """Refuses where asking again would do better: the first token would come too late, or the wait for it is what
        a whole answer has no time for. An answer that is too long by itself is let in, and cut.
        """
        if left_s <= 0:
            raise DeadlineExceededError("the deadline had passed when the request came")
        if self.in_flight == 0:
            return  # nothing better will come, and estimates must be able to recover
        wait_s = self.predicted_wait_s(now_s)
        # What a broken answer had said is made again, a step a token, before anything new.
        repeated_s = len(request.emitted) * self._token_s.value
        first_token_s = turn.prompt_tokens * self._prefill_s_per_token.value + repeated_s
        whole_s = first_token_s + self._expected_tokens(turn) * self._token_s.value * self._sharers
        needed_s = whole_s if whole_s <= left_s else first_token_s
        if wait_s + needed_s > left_s:
            raise DeadlineUnmeetableError(left_s, wait_s + needed_s, self._retry_after_s(wait_s + needed_s - left_s))

    def _next_end_s(self, now_s: float) -> float:
        return min((self._left_s(turn, now_s) for turn in self._admitted.values()), default=0.0)

    @property
    def _sharers(self) -> int:
        """Turns among which one more would share the device."""
        return min(self._limits.active_turns, self.in_flight + 1)

    def _expected_tokens(self, turn: _Admitted) -> float:
        expected = self._tokens_per_turn.value
        return expected if turn.max_tokens is None else min(expected, turn.max_tokens)

    def _to_read(self, request: TurnRequest, session: Hashable | None) -> int:
        """Prompt tokens that are probably not in the session's context."""
        return max(len(request.prompt_ids) - self._read.get(session, 0), 1)

    def _remember(self, session: Hashable, prompt_tokens: int) -> None:
        """Of as many sessions as have a context, how much of a prompt each has read."""
        self._read.pop(session, None)
        self._read[session] = prompt_tokens
        while len(self._read) > self._limits.slots:
            self._read.pop(next(iter(self._read)))

    def _left_s(self, turn: _Admitted, now_s: float) -> float:
        tokens = self._expected_tokens(turn)
        work_s = turn.prompt_tokens * self._prefill_s_per_token.value + tokens * self._token_s.value
        return work_s if turn.started_s is None else max(work_s - (now_s - turn.started_s), self._token_s.value)

    @staticmethod
    def _retry_after_s(predicted_s: float) -> float:
        return min(max(predicted_s, RETRY_AT_LEAST_S), RETRY_AT_MOST_S)
