"""Lends contexts to turns. Sessions keep theirs while idle: on the device until somebody needs the room, then on the
host until there is no room either.
"""

from __future__ import annotations

import logging

from engine.errors import FatalDeviceError
from service.port import ContextPort, EnginePort, SavedPort
from service.session import SessionKey, SessionState, SessionTable

log = logging.getLogger(__name__)


class Contexts:
    """Everything here runs in the engine's thread. `host_bytes` is the room on the host."""

    def __init__(self, engine: EnginePort, host_bytes: int) -> None:
        self._engine = engine
        self._slots = engine.info.slots
        self._bytes_per_token = engine.info.kv_bytes / (engine.info.slots * engine.info.context)
        self._sessions: SessionTable[ContextPort, SavedPort] = SessionTable(self._slots, host_bytes)
        self._unnamed: list[ContextPort] = []  # of turns without a session
        self._evicted_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens held in all contexts."""
        return sum(len(context.tokens) for context in (*self._sessions.contexts(), *self._unnamed))

    @property
    def host_tokens(self) -> int:
        """Tokens of idle sessions on the host."""
        return sum(len(saved.tokens) for saved in self._sessions.shelved())

    def take_evicted(self) -> int | None:
        """Tokens that sessions lost since the last call, or None."""
        evicted, self._evicted_tokens = self._evicted_tokens, None
        return evicted

    def borrow(self, key: SessionKey | None) -> ContextPort:
        """A context for one turn: the session's own, or an empty one. StepError when every slot is busy."""
        state = SessionState.ABSENT if key is None else self._sessions.state(key)
        if key is not None and state is SessionState.IDLE:
            return self._sessions.begin(key)
        saved = self._sessions.take(key) if key is not None and state is SessionState.SHELVED else None
        if len(self._sessions) + len(self._unnamed) >= self._slots:
            self._make_room()
        context = self._engine.open_context() if saved is None else self._engine.restore(saved)
        if key is None:
            self._unnamed.append(context)
        else:
            self._sessions.open(key, context)
        return context

    def give_back(self, key: SessionKey | None, context: ContextPort, sound: bool) -> None:
        """After a turn. A session keeps a sound context; any other is closed."""
        if key is not None and sound:
            self._sessions.end(key)
            return
        if key is not None:
            self._sessions.drop(key)
        else:
            self._unnamed.remove(context)
        context.close()

    def _make_room(self) -> None:
        """The idle session that was used longest ago gives its slot up."""
        oldest = self._sessions.oldest_idle()
        if oldest is None:
            return
        key, context = oldest
        saved = self._saved(context)
        if saved is None or not self._sessions.fits(saved.bytes):
            self._lose(len(context.tokens))
            self._sessions.evict(key)
        else:
            for forgotten in self._sessions.shelve(key, saved, saved.bytes):
                self._lose(len(forgotten.tokens))
        context.close()

    def _saved(self, context: ContextPort) -> SavedPort | None:
        """A copy on the host, where that has room for one and gives it."""
        if not self._sessions.fits(int(len(context.tokens) * self._bytes_per_token)):
            return None
        try:
            return self._engine.save(context)
        except FatalDeviceError:
            raise
        except Exception:  # the session loses its cache, and nothing else
            log.exception("an idle session's keys and values could not be moved to the host")
            return None

    def _lose(self, tokens: int) -> None:
        self._evicted_tokens = (self._evicted_tokens or 0) + tokens
