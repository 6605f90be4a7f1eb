"""How a server leaves, as data: which phase holds at which time. Pure; service.app does what the phases say.

The order: first balancers learn (health NOT_SERVING) while new turns are still taken; then new and queued turns are
refused and running ones may end; then those that cannot end are told so; then the process stops. Unless nobody asked it
to: a server whose node goes hands its turns over by itself, and then waits for the signal, since a process that ended
would be started again on that node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from service.ops.log_writer import LAST_WORDS_S


class Phase(IntEnum):
    """In order; a phase is never left backwards."""

    SERVING = 0
    PROPAGATING = 1  # NOT_SERVING, still accepting
    FINISHING = 2  # new and queued turns get UNAVAILABLE, running ones may end
    ENDING = 3  # running ones end with `finished{DRAINING}`
    WAITING = 4  # all is handed over, and the signal has not come yet
    STOPPED = 5


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """How long each phase may last, and each wait of the stop that follows, seconds.

    Attributes:
        propagation_s: PROPAGATING, whatever goes on: the time that balancers need to hear.
        grace_s: FINISHING at most.
        ending_s: ENDING at most.
        engine_s: the engine's thread ends what it does and gives its device back.
        handlers_s: handlers clean up: first those of turns, then, after the server's stop, all.
        watchers_s: streams that never end by themselves are cancelled after so long.
        observers_s: what is left of traces is sent, and the metrics port closed.
        log_s: the last lines of the log are written.
    """

    propagation_s: float
    grace_s: float
    ending_s: float = 2.0
    engine_s: float = 10.0
    handlers_s: float = 5.0
    watchers_s: float = 0.1
    observers_s: float = 5.0
    log_s: float = LAST_WORDS_S

    @property
    def stop_s(self) -> float:
        """The longest that the stop takes, once the phases are over."""
        return self.engine_s + 2 * self.handlers_s + self.watchers_s + self.observers_s + self.log_s

    @property
    def total_s(self) -> float:
        """The longest from the first signal to the end, where all that can hang hangs: a pod's grace period covers it.

        An orderly server is away much sooner: every wait ends as soon as there is nothing to wait for.
        """
        return self.propagation_s + self.grace_s + self.ending_s + self.stop_s

    def limit_s(self, phase: Phase) -> float:
        """How long `phase` may last."""
        return {
            Phase.PROPAGATING: self.propagation_s,
            Phase.FINISHING: self.grace_s,
            Phase.ENDING: self.ending_s,
            Phase.WAITING: 0.0,
        }.get(phase, float("inf"))


class Drain:
    """Where a leaving server stands. The caller brings the clock."""

    def __init__(self, times: DrainTimes) -> None:
        self._times = times
        self._phase = Phase.SERVING
        self._since_s = 0.0
        self._signalled = False

    @property
    def phase(self) -> Phase:
        return self._phase

    def signal(self, now_s: float) -> None:
        """A signal to leave. The first begins the drain; each further one ends the present phase at once.

        The first during a hand-over ends no phase: they go on, each from when it began.
        """
        first, self._signalled = not self._signalled, True
        if self._phase is Phase.SERVING or (not first and self._phase < Phase.STOPPED):
            self._enter(Phase(self._phase + 1), now_s)

    def hand_over(self, now_s: float) -> None:
        """Begin the drain, and do not stop at its end before a signal has come."""
        if self._phase is Phase.SERVING:
            self._enter(Phase.PROPAGATING, now_s)

    def tick(self, now_s: float, *, idle: bool) -> Phase:
        """The phase that holds now; `idle` says that no turn is on the device and none waits."""
        while (left_s := self.left_s(now_s)) <= 0 or (idle and self._phase in (Phase.FINISHING, Phase.ENDING)):
            self._enter(Phase(self._phase + 1), now_s + min(left_s, 0))
        return self._phase

    def left_s(self, now_s: float) -> float:
        """Until the present phase must end; infinite while nothing but a signal ends it, and once stopped."""
        if self._phase is Phase.WAITING and not self._signalled:
            return float("inf")
        return self._since_s + self._times.limit_s(self._phase) - now_s

    def _enter(self, phase: Phase, now_s: float) -> None:
        self._phase = phase
        self._since_s = now_s
