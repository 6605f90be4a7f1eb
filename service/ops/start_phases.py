"""How long each part of a start takes: the time from nothing to ready, cut where the engine says that it moved on."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from engine.events import Progress


class StartPhase(StrEnum):
    """In order. The metrics label has exactly these values."""

    OPEN = "open"  # libraries, the model's files, its tokenizer
    DOWNLOAD = "download"  # a model of a bucket into the cache
    LOAD = "load"  # weights onto the device
    CAPTURE = "capture"  # graphs, and their first comparison with the eager step


class StartPhases:
    """A stopwatch with one hand a phase. Any thread may read it, the engine's moves it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(StartPhase, 0.0)
        self._running: StartPhase | None = StartPhase.OPEN
        self._since_s = clock()

    def progress(self, event: Progress) -> None:
        """A phase goes on or begins. One that is over is not begun again: graphs may be captured anew much later."""
        if self._running is not None and StartPhase(event.phase) is not self._running:
            self._turn_to(StartPhase(event.phase))

    def ready(self) -> None:
        """The start is over."""
        self._turn_to(None)

    def seconds(self, phase: StartPhase) -> float:
        """How long `phase` took, or takes by now; 0 if it has not come."""
        running = self._clock() - self._since_s if phase is self._running else 0.0
        return self._seconds[phase] + running

    def _turn_to(self, phase: StartPhase | None) -> None:
        now_s = self._clock()
        if self._running is not None:
            self._seconds[self._running] += now_s - self._since_s
        self._running, self._since_s = phase, now_s
