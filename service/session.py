"""Which sessions hold a context, and what may happen to each. Pure: no torch, asyncio, threading or clock.

A session belongs to one caller and has one context. A context never serves two keys, and only an idle session gives its
context up: for a copy on the shelf, which is host memory, or for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")
S = TypeVar("S")


class SessionKey(NamedTuple):
    """The same session id of two callers is two sessions."""

    caller: str
    session_id: str


class SessionState(StrEnum):
    """Where a session stands. One that the table does not hold is absent."""

    ABSENT = "absent"
    BUSY = "busy"
    IDLE = "idle"
    SHELVED = "shelved"


class SessionAct(StrEnum):
    """What is done to a session."""

    OPEN = "open"
    BEGIN = "begin"
    END = "end"
    DROP = "drop"
    EVICT = "evict"
    SHELVE = "shelve"
    TAKE = "take"


TRANSITIONS: Mapping[tuple[SessionState, SessionAct], SessionState] = {
    (SessionState.ABSENT, SessionAct.OPEN): SessionState.BUSY,
    (SessionState.IDLE, SessionAct.BEGIN): SessionState.BUSY,
    (SessionState.BUSY, SessionAct.END): SessionState.IDLE,
    (SessionState.BUSY, SessionAct.DROP): SessionState.ABSENT,
    (SessionState.IDLE, SessionAct.EVICT): SessionState.ABSENT,
    (SessionState.IDLE, SessionAct.SHELVE): SessionState.SHELVED,
    (SessionState.SHELVED, SessionAct.TAKE): SessionState.ABSENT,
}


class SessionStateError(Exception):
    """A programmer asked for what the table does not hold."""


class SessionTable(Generic[C, S]):
    """Sessions in the order of their last use, oldest first: `limit` contexts at most, and `shelf_bytes` of copies.

    C is a context, S a copy of one. Its length counts contexts.
    """

    def __init__(self, limit: int, shelf_bytes: int = 0) -> None:
        self._limit = limit
        self._shelf_bytes = shelf_bytes
        self._shelf: OrderedDict[SessionKey, tuple[S, int]] = OrderedDict()
        self._contexts: OrderedDict[SessionKey, C] = OrderedDict()
        self._busy: set[SessionKey] = set()

    def __len__(self) -> int:
        return len(self._contexts)

    def state(self, key: SessionKey) -> SessionState:
        """Where this session stands."""
        if key not in self._contexts:
            return SessionState.SHELVED if key in self._shelf else SessionState.ABSENT
        return SessionState.BUSY if key in self._busy else SessionState.IDLE

    def open(self, key: SessionKey, context: C) -> None:
        """A new session takes this context and is busy with its first turn."""
        if len(self) >= self._limit:
            raise SessionStateError(f"{self._limit} sessions are open, which is the limit; evict one first")
        if any(held is context for held in self._contexts.values()):
            raise SessionStateError(f"the context for {key} belongs to another session")
        self._move(key, SessionAct.OPEN)
        self._contexts[key] = context

    def begin(self, key: SessionKey) -> C:
        """An idle session's next turn begins, in the context returned."""
        self._move(key, SessionAct.BEGIN)
        return self._contexts[key]

    def end(self, key: SessionKey) -> None:
        """A busy session's turn ended and its context is sound."""
        self._move(key, SessionAct.END)
        self._contexts.move_to_end(key)

    def drop(self, key: SessionKey) -> C:
        """A busy session's turn ended badly: the session is forgotten, and its context returned to be closed."""
        self._move(key, SessionAct.DROP)
        return self._contexts.pop(key)

    def oldest_idle(self) -> tuple[SessionKey, C] | None:
        """The idle session that was used longest ago, or None if all are busy."""
        return next(((key, context) for key, context in self._contexts.items() if key not in self._busy), None)

    def evict(self, key: SessionKey) -> C:
        """Forgets an idle session; its context, to be closed."""
        self._move(key, SessionAct.EVICT)
        return self._contexts.pop(key)

    def fits(self, size: int) -> bool:
        """Whether the shelf can hold a copy of `size` bytes at all."""
        return 0 <= size <= self._shelf_bytes

    def shelve(self, key: SessionKey, copy: S, size: int) -> list[S]:
        """An idle session gives its context, to be closed, for a copy. What the shelf had to forget, oldest first."""
        if not self.fits(size):
            raise SessionStateError(f"a copy of {size} bytes does not fit on a shelf of {self._shelf_bytes}")
        self._move(key, SessionAct.SHELVE)
        del self._contexts[key]
        forgotten = []
        while self._shelf and sum(held for _, held in self._shelf.values()) + size > self._shelf_bytes:
            forgotten.append(self.take(next(iter(self._shelf))))
        self._shelf[key] = (copy, size)
        return forgotten

    def take(self, key: SessionKey) -> S:
        """A session's copy leaves the shelf, and the session is forgotten until it is opened again."""
        self._move(key, SessionAct.TAKE)
        return self._shelf.pop(key)[0]

    def shelved(self) -> tuple[S, ...]:
        """Every copy on the shelf, that of the session used longest ago first."""
        return tuple(copy for copy, _ in self._shelf.values())

    def contexts(self) -> tuple[C, ...]:
        """Every context held, that of the session used longest ago first."""
        return tuple(self._contexts.values())

    def _move(self, key: SessionKey, act: SessionAct) -> None:
        state = self.state(key)
        if (state, act) not in TRANSITIONS:
            raise SessionStateError(f"cannot {act} session {key}: it is {state}")
        if TRANSITIONS[state, act] is SessionState.BUSY:
            self._busy.add(key)
        else:
            self._busy.discard(key)
