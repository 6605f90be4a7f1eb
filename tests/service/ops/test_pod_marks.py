"""Idle pods look cheap, and Karpenter is held off for a time that nothing can make longer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from service.events import Load
from service.ops.pod_marks import (
    CLEARED,
    DELETION_COST,
    DO_NOT_DISRUPT,
    LET_GO_EVERY_S,
    REST_S,
    WRITE_EVERY_S,
    Marks,
    PodMarks,
)


def load(turns: int, cache: float = 0.0) -> Load:
    return Load(max(0, turns - 1), min(1, turns), 0.0, 0.0, round(1000 * cache), 1000, draining=False)


def settled(limit_s: float = 0.0) -> PodMarks:
    """At second 0 the pod is known to be free."""
    marks = PodMarks(limit_s)
    marks.wrote(marks.next(0.0), 0.0)
    return marks


def written(marks: PodMarks, now_s: float) -> Marks:
    assert marks.due_s(now_s) <= now_s
    next_ = marks.next(now_s)
    marks.wrote(next_, now_s)
    return next_


def test_the_first_thing_is_to_take_off_what_another_process_left() -> None:
    marks = PodMarks(600.0)
    marks.show(load(2))

    assert marks.due_s(5.0) <= 5.0
    assert marks.next(5.0).annotations(5.0, pod_age_s=900.0) == {DELETION_COST: "200", DO_NOT_DISRUPT: None}
    assert marks.due_s(5.0) == 5.0 + LET_GO_EVERY_S, "nobody knows yet whether that was heard"


def test_an_idle_pod_is_cheaper_than_one_with_warm_sessions_and_that_than_a_busy_one() -> None:
    costs = []
    for turns, cache in ((0, 0.0), (0, 0.3), (0, 1.0), (1, 0.0), (1, 1.0), (2, 0.0), (17, 1.0)):
        marks = settled()
        marks.show(load(turns, cache))
        costs.append(marks.next(100.0).deletion_cost)

    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


def test_many_changes_are_one_write() -> None:
    marks = settled()
    for turns in (1, 2, 3, 2, 5):
        assert marks.show(load(turns))
    assert not marks.show(load(5))

    assert marks.due_s(1.0) == WRITE_EVERY_S
    assert written(marks, WRITE_EVERY_S).deletion_cost == 500
    assert marks.due_s(WRITE_EVERY_S) == math.inf


def test_what_changed_back_before_it_was_written_is_not_written() -> None:
    marks = settled()
    marks.show(load(1))
    marks.show(load(0))

    assert marks.due_s(1e9) == math.inf


def test_without_a_limit_karpenter_is_never_held_off() -> None:
    marks = settled(limit_s=0.0)
    marks.show(load(1))

    assert written(marks, 1000.0).held_until_s is None


def test_a_hold_says_itself_when_it_ends() -> None:
    marks = settled(limit_s=600.0)
    marks.show(load(1))

    assert written(marks, 10.0).held_until_s is None, "it was taken off just now"
    assert marks.due_s(10.0) == REST_S
    held = written(marks, REST_S)
    assert held.annotations(REST_S, pod_age_s=1000.5)[DO_NOT_DISRUPT] == "1600s"
    assert held.annotations(REST_S, pod_age_s=None)[DO_NOT_DISRUPT] is None
    assert held.annotations(REST_S + 599.9, pod_age_s=0.0)[DO_NOT_DISRUPT] is None, "a duration of 0 would be an error"
    assert marks.due_s(REST_S) == REST_S + 600.0
    assert written(marks, REST_S + 600.0).held_until_s is None
    assert marks.due_s(REST_S + 600.0) == REST_S + 600.0 + REST_S


def test_turns_with_pauses_between_them_do_not_move_the_end() -> None:
    marks = settled(limit_s=600.0)
    marks.show(load(1))
    first = written(marks, REST_S)
    for now_s in (REST_S + 100.0, REST_S + 300.0, REST_S + 500.0):
        marks.show(load(0))
        assert written(marks, now_s).held_until_s is None
        marks.show(load(1))
        assert written(marks, now_s + WRITE_EVERY_S).held_until_s == first.held_until_s


@pytest.mark.parametrize("turns", [0, 1])
def test_a_node_that_was_told_to_go_is_let_go_and_its_pod_is_the_cheapest(turns: int) -> None:
    marks = settled(limit_s=600.0)
    marks.show(load(1))
    written(marks, REST_S)
    marks.show(load(turns))
    marks.give_way(yes=True)

    gone = written(marks, REST_S + LET_GO_EVERY_S)
    assert gone.held_until_s is None
    assert gone.deletion_cost < CLEARED.deletion_cost
    marks.give_way(yes=False)
    assert written(marks, REST_S + 50.0).deletion_cost == 100 * turns


# Whatever fails, and whoever dies.


@dataclass(slots=True)
class Pod:
    """What the API has, and when Karpenter was held off by it: its own rule, second by second."""

    value: str | None = None
    held_at: list[int] = field(default_factory=list)

    def look(self, now_s: int) -> None:
        if self.value is not None and now_s < int(self.value.removesuffix("s")):
            self.held_at.append(now_s)

    def longest_s(self) -> int:
        """The longest time from a first to a last hold that had no rest in between."""
        longest, began, last = 0, None, -math.inf
        for now_s in self.held_at:
            if began is None or now_s - last > REST_S:
                began = now_s
            longest, last = max(longest, now_s - began + 1), now_s
        return longest


@pytest.mark.parametrize("seed", range(12))
def test_promise_12_no_hold_outlives_its_limit_whatever_the_api_loses_and_whoever_dies(seed: int) -> None:
    """The pod starts at second 0, so that a duration is a time. A process may die at any second and leave its mark."""
    chance = random.Random(seed)
    limit_s = chance.choice([30, 100, 600])
    pod, marks, busy = Pod("1000000s" if seed % 2 else None), PodMarks(limit_s), 0
    first_clear_s: int | None = None
    for now_s in range(6_000):
        if chance.random() < 1 / 1000:
            marks = PodMarks(limit_s)
        if chance.random() < 1 / 40:
            busy = chance.choice([0, 1, 1, 2])
        marks.show(load(busy))
        if chance.random() < 1 / 2000:
            marks.give_way(yes=chance.random() < 0.5)
        if marks.due_s(now_s) <= now_s:
            next_ = marks.next(now_s)
            fate = chance.choice(["done", "done", "lost", "unheard"])
            if fate != "lost":
                pod.value = next_.annotations(now_s, pod_age_s=now_s)[DO_NOT_DISRUPT]
                first_clear_s = now_s if first_clear_s is None else first_clear_s
            if fate == "done":
                marks.wrote(next_, now_s)
        if first_clear_s is not None:
            pod.look(now_s)

    assert first_clear_s is not None
    assert first_clear_s < 60
    assert 0 < pod.longest_s() <= limit_s
