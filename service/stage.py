"""The one thread that owns the engine. Commands come in, happenings go out; what lies between is the central loop."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

from engine.errors import DeviceError, EngineError, FatalDeviceError, InvalidRequestError, ReplayError
from engine.events import EngineEvent, Listener
from engine.outputs import Prefilled, Replayed, TurnStep
from service.contexts import Contexts
from service.errors import DeadlineExceededError, DrainingError, SlowReaderError
from service.events import TurnEnd
from service.mailbox import (
    Began,
    Cancel,
    Command,
    ContextsChanged,
    Drain,
    Gone,
    Happening,
    Made,
    Opened,
    Outbox,
    Over,
    Play,
    Stop,
    Taken,
)
from service.performance import Clockwork, Performance
from service.port import EnginePort
from service.scheduler import Expiry, Limits, Scheduler, TurnState

log = logging.getLogger(__name__)

SELF_CHECK_EVERY_S: Final = 30.0  # while nobody plays
HEARTBEAT_EVERY_S: Final = 1.0  # at rest; while playing, once a step

EngineFactory = Callable[[Listener], EnginePort]


class LoadAbandonedError(Exception):
    """Told to stop before the engine was open: nobody waits for it any more."""


class Stage:
    """Everything here runs in the engine's thread, but for `send` and the reading of `engine` and `heartbeat_s`."""

    def __init__(
        self,
        factory: EngineFactory,
        limits: Limits,
        outbox: Outbox,
        clock: Callable[[], float],
        engine_listener: Listener,
    ) -> None:
        self._factory = factory
        self._limits = limits
        self._outbox = outbox
        self._clock = clock
        self._engine_listener = engine_listener
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._performances: dict[int, Performance] = {}
        self._busy = Clockwork()
        self._drain_until_s = inf
        self._stopping = False
        self._told_to_stop = False
        self.engine: EnginePort | None = None
        self.heartbeat_s = clock()

    def send(self, command: Command) -> None:
        """From any thread."""
        if isinstance(command, Stop):
            self._told_to_stop = True  # commands are not taken while the engine loads: `_hear` looks at this
        self._commands.put(command)

    def run(self) -> None:
        """The thread's whole life. However it ends, `Gone` is the last that it posts."""
        error: BaseException | None = None
        try:
            self._open()
            self._serve()
            self._leave()
        except BaseException as caught:  # whatever ends this thread must reach everybody who waits for it
            if self.engine is not None or not isinstance(caught, EngineError | LoadAbandonedError):
                log.critical("the engine's thread ended", exc_info=True)
            # else the model could not be opened: the error's one line says why, and is told by whoever waits
            if self.engine is not None or not self._told_to_stop:
                error = caught
        finally:
            self._outbox.post(None, Gone(error))

    def _serve(self) -> None:
        """The central loop: a round is one step of one turn, between two looks at what the outside wants."""
        while self._take_commands():  # cancels before steps: at most the step under way is wasted
            self._end_expired(self._clock())  # deadlines, slow readers, the end of draining
            turn_id = self._scheduler.next_turn()  # free places go to those who wait
            self.heartbeat_s = self._clock()
            if turn_id is None:
                self._rest()  # until a command comes or somebody's time is over
            else:
                self._play(self._performances[turn_id])  # one prefill chunk or one token

    def _open(self) -> None:
        engine = self._factory(self._hear)
        if engine.info.slots < self._limits.active_turns:
            raise DeviceError(
                f"the device has room for {engine.info.slots} sessions, fewer than the {self._limits.active_turns} "
                "turns that may play at once; use a smaller --max-active-turns or a shorter --context"
            )
        self.engine = engine
        self._contexts = Contexts(engine, self._limits.host_kv_bytes)
        self._limits = replace(self._limits, slots=min(self._limits.slots, engine.info.slots))
        self._scheduler = Scheduler(self._limits)
        self._check_due_s = self._clock() + SELF_CHECK_EVERY_S
        self._outbox.post(None, Opened())

    def _leave(self) -> None:
        for performance in list(self._performances.values()):
            self._end_by_drain(performance)
        if self.engine is not None:
            self.engine.close()

    def _take_commands(self) -> bool:
        """Obeys all that have come; whether to go on."""
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                self._obey(self._commands.get_nowait())
        return not self._stopping

    def _rest(self) -> None:
        if not self._performances and self._clock() >= self._check_due_s:
            self._self_check()
            return  # somebody may have come meanwhile
        until_s = min(self._scheduler.next_expiry_s(), self._drain_until_s if self._performances else inf)
        rest_s = min(max(until_s - self._clock(), 0.0), HEARTBEAT_EVERY_S)
        with contextlib.suppress(queue.Empty):
            self._obey(self._commands.get(timeout=rest_s))

    def _self_check(self) -> None:
        """A replay against its eager twin, where nobody waits for it. The engine tells what it finds."""
        assert self.engine is not None
        every_s = SELF_CHECK_EVERY_S
        try:
            if not self.engine.self_check():
                every_s = inf
        except FatalDeviceError:
            raise
        except Exception:  # whether replays are right is not known, which is no reason to stop
            log.exception("a self-check failed to run")
        self._check_due_s = self._clock() + every_s

    def _obey(self, command: Command) -> None:
        if isinstance(command, Play):
            self._performances[command.turn_id] = Performance(command)
            request = command.request
            self._scheduler.enqueue(command.turn_id, command.key, request.priority, request.deadline_s)
        elif isinstance(command, Cancel):
            if (performance := self._performances.get(command.turn_id)) is not None:
                self._end(performance, TurnEnd.CANCELLED)
        elif isinstance(command, Taken):
            if (performance := self._performances.get(command.turn_id)) is not None:
                self._catch_up(performance, command.count)
        elif isinstance(command, Drain):
            self._drain_until_s = command.until_s
            for turn_id in self._scheduler.ids(TurnState.WAITING):
                self._end_by_drain(self._performances[turn_id])
        elif isinstance(command, Stop):
            self._stopping = True

    def _end_expired(self, now_s: float) -> None:
        for turn_id, why in self._scheduler.expired(now_s):
            performance = self._performances[turn_id]
            if why is Expiry.SLOW_READER:
                error = SlowReaderError(performance.behind, self._limits.reader_patience_s)
                self._end(performance, TurnEnd.SLOW_READER, error)
            elif performance.began:
                self._end(performance, TurnEnd.DEADLINE)
            else:
                self._end(performance, TurnEnd.EXPIRED, DeadlineExceededError())
        if now_s >= self._drain_until_s:
            for performance in list(self._performances.values()):
                self._end_by_drain(performance)

    def _play(self, performance: Performance) -> None:
        assert self.engine is not None
        try:
            if not performance.opened:
                performance.open(self.engine, self._contexts)
            if self._step(performance) and performance.complete:
                self._step(performance)  # nobody waits for another turn's step to hear of an end
        except FatalDeviceError:
            raise
        except (InvalidRequestError, ReplayError) as error:  # the caller's, the former found before any work
            performance.sound = not performance.began
            self._end(performance, TurnEnd.INVALID, error)
        except Exception as error:  # one turn's fault is no other's: the loop goes on
            log.exception("a turn failed", extra=_named(performance))
            performance.sound = False
            self._end(performance, TurnEnd.FAILED, error)

    def _step(self, performance: Performance) -> bool:
        """Whether the turn goes on."""
        before_s = self._clock()
        step = performance.step()
        now_s = self._clock()
        if step is None:
            self._end(performance, TurnEnd.STOP if performance.ended_by_token else TurnEnd.LENGTH)
            return False
        self._report(performance, step, now_s, now_s - before_s)
        return True

    def _report(self, performance: Performance, step: TurnStep, now_s: float, step_s: float) -> None:
        turn_id = performance.turn_id
        if isinstance(step, Prefilled):
            self._busy.prefill_s += step_s
            performance.prefill_s += step_s
            if not performance.began:
                performance.began = True
                self._tell(performance, Began(now_s - step_s, step.cached, step.history, step.read))
                self._tell_contexts()
            performance.prefilled = step.done - step.cached - performance.repeated.total()
            performance.prefilled_s = now_s
            self._scheduler.played_chunk(turn_id)
        elif isinstance(step, Replayed):
            self._busy.decode_s += step_s
            performance.prefilled_s = now_s
            self._scheduler.played_token(turn_id)
        else:
            self._busy.decode_s += step_s
            if performance.made == 1:
                self._tell(performance, performance.prompt_read())
            stalls = performance.stalls(step, now_s, step_s, self._busy)
            self._tell(performance, Made(now_s, step, step_s, stalls))
            self._scheduler.played_token(turn_id)
        if performance.behind >= self._limits.reader_window:
            self._scheduler.pause(turn_id, now_s)
            performance.pause(now_s)

    def _catch_up(self, performance: Performance, count: int) -> None:
        performance.behind -= count
        paused = self._scheduler.state(performance.turn_id) is TurnState.PAUSED
        if paused and performance.behind <= self._limits.reader_window // 2:
            self._scheduler.resume(performance.turn_id)
            performance.resume(self._clock())

    def _end_by_drain(self, performance: Performance) -> None:
        if performance.began:
            self._end(performance, TurnEnd.DRAINING)
        else:
            self._end(performance, TurnEnd.DRAINED_IN_QUEUE, DrainingError())

    def _end(self, performance: Performance, end: TurnEnd, error: Exception | None = None) -> None:
        """The one way out of the stage: work has stopped and the context is back before the reader hears of it."""
        try:
            performance.close()
        except FatalDeviceError:
            raise
        except Exception:  # the answer so far is right; the context is not kept
            log.exception("a turn did not close", extra=_named(performance))
        finally:
            self._scheduler.end(performance.turn_id)
            del self._performances[performance.turn_id]
            self._outbox.post(performance.turn_id, Over(self._clock(), end, error))
        self._tell_contexts()

    def _tell(self, performance: Performance, happening: Happening) -> None:
        performance.behind += 1
        self._outbox.post(performance.turn_id, happening)

    def _tell_contexts(self) -> None:
        contexts = self._contexts
        self._outbox.post(None, ContextsChanged(contexts.tokens, contexts.host_tokens, contexts.take_evicted()))

    def _hear(self, event: EngineEvent) -> None:
        if self.engine is None and self._told_to_stop:
            raise LoadAbandonedError
        try:
            self._engine_listener(event)
        except Exception:  # an observer's fault is no turn's
            log.exception("an observer failed at %s", type(event).__name__)


def _named(performance: Performance) -> dict[str, dict[str, str]]:
    """For a log line."""
    return {"fields": {"request_id": performance.request.request_id}}
