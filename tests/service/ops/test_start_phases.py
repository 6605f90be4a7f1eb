"""A start's time is cut where the engine moves on, and nothing that comes later moves it."""

from __future__ import annotations

from engine.events import Progress
from service.ops.start_phases import StartPhase, StartPhases


class Clock:
    """Time as a number."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_phase_has_its_share_of_the_start() -> None:
    clock = Clock()
    phases = StartPhases(clock)
    clock.now_s += 2.0
    phases.progress(Progress("load", 0, 10, "bytes"))
    clock.now_s += 5.0
    phases.progress(Progress("load", 10, 10, "bytes"))
    clock.now_s += 0.5
    assert phases.seconds(StartPhase.LOAD) == 5.5

    phases.progress(Progress("capture", 0, 3, "graphs"))
    clock.now_s += 1.0
    assert [phases.seconds(phase) for phase in StartPhase] == [2.0, 0.0, 5.5, 1.0]


def test_once_ready_it_stands_still_though_graphs_are_captured_anew() -> None:
    clock = Clock()
    phases = StartPhases(clock)
    phases.progress(Progress("load", 0, 10, "bytes"))
    clock.now_s += 3.0
    phases.ready()
    clock.now_s += 60.0
    phases.progress(Progress("capture", 0, 3, "graphs"))
    clock.now_s += 60.0

    assert [phases.seconds(phase) for phase in StartPhase] == [0.0, 0.0, 3.0, 0.0]
