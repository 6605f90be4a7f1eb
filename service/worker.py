"""The loop's side of the engine's thread: starts it, lets turns in, hands their streams out, and settles each once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from engine.events import EngineEvent, Listener, Progress
from engine.events import ignore as ignore_engine
from service.admission import Admission
from service.errors import DrainingError, EngineLostError, NotReadyError, ServiceError, loggable
from service.events import EngineStateChanged, Load, SessionEvicted, TurnEnd, TurnRequest
from service.ledger import Ledger, ServiceListener, ignore
from service.mailbox import (
    Cancel,
    ContextsChanged,
    Drain,
    Gone,
    Happening,
    Notice,
    Opened,
    Outbox,
    Over,
    Play,
    Stop,
    TurnStream,
)
from service.port import EnginePort
from service.scheduler import Limits
from service.session import SessionKey
from service.stage import EngineFactory, Stage

LOST_THREAD_ENDS_S = 0.5  # a thread that hangs does not end, and its process should


class WorkerState(StrEnum):
    """Where the engine stands, as the loop knows it."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


TRANSITIONS: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.NEW: frozenset({WorkerState.LOADING}),
    WorkerState.LOADING: frozenset({WorkerState.READY, WorkerState.DRAINING, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.READY: frozenset({WorkerState.DRAINING, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.DRAINING: frozenset({WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.FAILED: frozenset(),
    WorkerState.STOPPED: frozenset(),
}


class Worker:
    """One engine in one thread. Everything here is called in the event loop that called `start`.

    Args:
        factory: opens the engine, in its thread; told the listener for the engine's events.
        limits: queue, places, slots, slices, readers.
        clock: monotonic seconds; deadlines of requests are read on it.
        listener: hears what happens to turns, in the loop.
        engine_listener: hears what the engine does, in the engine's thread: it must be quick and thread-safe.
        on_fatal: called in the loop, once every turn has been told, when the thread ended without being asked to or
            was given up, a failure to open the engine included. The process must then end with a non-zero code.
    """

    def __init__(
        self,
        factory: EngineFactory,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        listener: ServiceListener = ignore,
        engine_listener: Listener = ignore_engine,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.clock = clock
        self.progress: Progress | None = None
        self.failure: BaseException | None = None
        self._factory = factory
        self._engine_listener = engine_listener
        self._on_fatal = on_fatal
        self._state = WorkerState.NEW
        self._admission = Admission(self.limits)
        self._ledger = Ledger(self._admission, listener)
        self._streams: dict[int, TurnStream] = {}
        self._next_id = 0
        self._kv_tokens = self._host_kv_tokens = 0
        self._opened = asyncio.Event()
        self._idle = asyncio.Event()
        self._gone = asyncio.Event()

    # Life.

    def start(self) -> None:
        """Starts the thread, which opens the engine. Returns at once; `ready` waits for it."""
        outbox = Outbox(asyncio.get_running_loop(), self._deliver)
        self._stage = Stage(self._factory, self.limits, outbox, self.clock, self._hear_engine)
        # A daemon: a hung device must not keep a process from ending.
        self._thread = threading.Thread(target=self._stage.run, name="engine", daemon=True)
        self._become(WorkerState.LOADING)
        self._thread.start()

    async def ready(self) -> None:
        """Returns when turns can play; raises what kept the engine from opening, NotReadyError if that was `stop`."""
        await self._opened.wait()
        if self.failure is not None:
            raise self.failure
        if self._stage.engine is None:
            raise NotReadyError("the model was given up before it was loaded")

    def drain(self, grace_s: float) -> None:
        """No new turns from now on; waiting ones end with DrainingError, playing ones after `grace_s` at the latest."""
        if self._state in (WorkerState.LOADING, WorkerState.READY):
            self._admission.draining = True
            self._become(WorkerState.DRAINING)
            self._note_idle()
        if self._state is WorkerState.DRAINING:
            self._stage.send(Drain(self.clock() + grace_s))

    async def drained(self) -> None:
        """Returns when draining has begun and no turn is left."""
        await self._idle.wait()

    async def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends every turn, the engine and its thread; False if the thread did not end in time."""
        if self._state is WorkerState.NEW:
            return True
        self._stage.send(Stop())
        if self._state is WorkerState.FAILED:
            timeout_s = min(timeout_s, LOST_THREAD_ENDS_S)
        ends_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            return False
        await asyncio.to_thread(self._thread.join, max(0.0, ends_s - time.monotonic()))
        return not self._thread.is_alive()

    def give_up(self, error: BaseException) -> None:
        """The thread is dead or hangs: every turn is told now. What it still has to say is not heard."""
        if not self._gone.is_set():
            self._lose(error)

    # What others may know.

    @property
    def state(self) -> WorkerState:
        """Where the engine stands."""
        return self._state

    @property
    def engine(self) -> EnginePort:
        """The open engine, of which only `info`, `text` and `defaults` may be read here."""
        if not self._opened.is_set() or self._stage.engine is None:
            raise NotReadyError
        return self._stage.engine

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._state is not WorkerState.NEW and self._thread.is_alive()

    @property
    def heartbeat_age_s(self) -> float:
        """Since the thread last came round: a step, a chunk, or a second at rest. Says nothing while loading."""
        return self.clock() - self._stage.heartbeat_s

    def load(self) -> Load:
        """How busy it is, now."""
        opened = self._opened.is_set() and self._stage.engine is not None
        info = self.engine.info if opened else None
        return Load(
            queued_turns=self._admission.queued,
            active_turns=self._admission.active,
            predicted_wait_s=self._admission.predicted_wait_s(self.clock()),
            inter_token_s=self._admission.token_s,
            kv_tokens_used=self._kv_tokens,
            kv_tokens_host=self._host_kv_tokens,
            kv_tokens_total=info.context * info.slots if info is not None else 0,
            draining=self._state is WorkerState.DRAINING,
        )

    # Turns.

    def submit(self, request: TurnRequest) -> TurnStream:
        """Lets a turn in, or raises why not, at once. Whoever gets the stream must `release` it."""
        key = SessionKey(request.caller, request.session_id) if request.session_id else None
        now_s = self.clock()
        turn_id = self._next_id
        try:
            self._check_state()
            self._admission.admit(turn_id, request, key, now_s)
        except ServiceError as error:
            self._ledger.refused(request, error)
            raise
        self._next_id += 1
        stream = TurnStream(turn_id, request, now_s, self.limits.reader_window, self._stage.send)
        self._streams[turn_id] = stream
        self._stage.send(Play(turn_id, request, key, now_s))
        self._ledger.admitted(request)
        return stream

    def cancel(self, stream: TurnStream) -> None:
        """Breaks the turn off within one step; its stream then ends. Does nothing to a turn that is over."""
        if stream.over is None and stream.cancelled_s is None:
            stream.cancelled_s = self.clock()
            self._admission.leaves(stream.turn_id)
            self._stage.send(Cancel(stream.turn_id))

    def release(self, stream: TurnStream, end: TurnEnd) -> None:
        """The reader leaves, having seen the turn end like this. What still plays is broken off."""
        self.cancel(stream)
        stream.end = end
        self._ledger.settle(stream)

    def _check_state(self) -> None:
        if self._state is WorkerState.FAILED:
            raise EngineLostError
        if self._state in (WorkerState.DRAINING, WorkerState.STOPPED):
            raise DrainingError
        if self._state is not WorkerState.READY:
            raise NotReadyError

    # What comes from the thread.

    def _deliver(self, turn_id: int | None, what: Happening | Notice) -> None:
        if self._gone.is_set():
            return  # everybody was told the end already
        if isinstance(what, Opened):
            self._opened.set()
            if self._state is WorkerState.LOADING:
                self._become(WorkerState.READY)
        elif isinstance(what, Gone):
            self._lose(what.error)
        elif isinstance(what, ContextsChanged):
            self._kv_tokens, self._host_kv_tokens = what.kv_tokens, what.host_tokens
            if what.evicted_tokens is not None:
                self._ledger.tell(SessionEvicted(what.evicted_tokens))
        elif turn_id is not None and (stream := self._streams.get(turn_id)) is not None:
            self._ledger.note(stream, what)
            stream.put(what)
            if isinstance(what, Over):
                self._finish(stream)

    def _finish(self, stream: TurnStream) -> None:
        del self._streams[stream.turn_id]
        self._admission.ended(stream.turn_id)
        self._ledger.settle(stream)
        self._note_idle()

    def _lose(self, error: BaseException | None) -> None:
        """The thread is gone: every turn that it still owed an end gets one here."""
        self.failure = error
        if error is None:
            self._become(WorkerState.STOPPED)
        else:
            self._become(WorkerState.FAILED, loggable(error))
        for stream in list(self._streams.values()):
            if error is None:
                over = Over(self.clock(), TurnEnd.DRAINED_IN_QUEUE, DrainingError())
            else:
                over = Over(self.clock(), TurnEnd.ENGINE_LOST, EngineLostError())
            stream.put(over)
            self._finish(stream)
        self._opened.set()
        self._gone.set()
        self._idle.set()
        if error is not None and self._on_fatal is not None:
            self._on_fatal(error)

    def _note_idle(self) -> None:
        if self._state is WorkerState.DRAINING and not self._streams:
            self._idle.set()

    def _become(self, state: WorkerState, detail: str = "") -> None:
        if state not in TRANSITIONS[self._state]:
            raise AssertionError(f"the worker cannot become {state}: it is {self._state}")
        self._state = state
        self._ledger.tell(EngineStateChanged(state.value, detail))

    def _hear_engine(self, event: EngineEvent) -> None:
        if isinstance(event, Progress):
            self.progress = event
        self._engine_listener(event)
