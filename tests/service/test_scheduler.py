"""service.scheduler: examples, then any order of events against its laws."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.scheduler import TRANSITIONS, Expiry, Limits, Scheduler, TurnAct, TurnState, TurnStateError


def played(scheduler: Scheduler, steps: int) -> list[int]:
    """Who makes the next so many tokens."""
    order = []
    for _ in range(steps):
        turn_id = scheduler.next_turn()
        assert turn_id is not None
        order.append(turn_id)
        scheduler.played_token(turn_id)
    return order


def test_first_come_first_served_within_a_priority() -> None:
    scheduler = Scheduler(Limits(active_turns=1))
    for arrived, priority in ((1, 0), (2, 0), (3, 5), (4, 5), (5, -1)):
        scheduler.enqueue(arrived, priority=priority)
    order: list[int] = []
    while (turn_id := scheduler.next_turn()) is not None:
        order.append(turn_id)
        scheduler.end(turn_id)
    assert order == [3, 4, 1, 2, 5]


def test_a_playing_turn_is_not_pushed_out_by_a_higher_priority() -> None:
    scheduler = Scheduler(Limits(active_turns=1))
    scheduler.enqueue(1)
    assert scheduler.next_turn() == 1
    scheduler.enqueue(2, priority=9)
    assert scheduler.next_turn() == 1


def test_turns_share_the_engine_in_slices_of_tokens() -> None:
    scheduler = Scheduler(Limits(active_turns=2, slice_tokens=3))
    scheduler.enqueue(1)
    scheduler.enqueue(2)
    scheduler.enqueue(3)
    assert played(scheduler, 12) == [1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]
    scheduler.end(1)
    assert played(scheduler, 6) == [2, 2, 2, 3, 3, 3]


def test_a_prefill_chunk_is_a_whole_slice() -> None:
    scheduler = Scheduler(Limits(active_turns=2, slice_tokens=2))
    scheduler.enqueue(1)
    scheduler.enqueue(2)
    assert scheduler.next_turn() == 1
    scheduler.played_chunk(1)
    assert played(scheduler, 2) == [2, 2]
    assert scheduler.next_turn() == 1


def test_two_turns_of_one_session_never_play_at_once() -> None:
    scheduler = Scheduler(Limits(active_turns=3))
    scheduler.enqueue(1, session="s")
    scheduler.enqueue(2, session="s")
    scheduler.enqueue(3, session="other")
    scheduler.next_turn()
    assert scheduler.ids(TurnState.PLAYING) == [1, 3]
    scheduler.pause(1, 0.0)
    scheduler.next_turn()
    assert scheduler.state(2) is TurnState.WAITING
    scheduler.end(1)
    scheduler.next_turn()
    assert scheduler.state(2) is TurnState.PLAYING


def test_a_paused_turn_gives_its_place_but_not_its_slot() -> None:
    scheduler = Scheduler(Limits(active_turns=1, slots=2))
    for turn_id in (1, 2, 3):
        scheduler.enqueue(turn_id)
    scheduler.next_turn()
    scheduler.pause(1, 0.0)
    assert scheduler.next_turn() == 2
    scheduler.pause(2, 0.0)
    assert scheduler.next_turn() is None  # both slots are held
    scheduler.resume(2)
    assert scheduler.next_turn() == 2
    scheduler.resume(1)
    scheduler.end(2)
    assert scheduler.next_turn() == 1  # before turn 3, which never had a place


def test_deadlines_and_patience_expire() -> None:
    scheduler = Scheduler(Limits(active_turns=2, reader_patience_s=10.0))
    scheduler.enqueue(1, deadline_s=5.0)
    scheduler.enqueue(2)
    scheduler.next_turn()
    assert scheduler.expired(4.9) == []
    assert scheduler.next_expiry_s() == 5.0
    assert scheduler.expired(5.0) == [(1, Expiry.DEADLINE)]
    scheduler.end(1)
    assert scheduler.next_expiry_s() == inf
    scheduler.pause(2, 6.0)
    assert scheduler.next_expiry_s() == 16.0
    assert scheduler.expired(16.0) == [(2, Expiry.SLOW_READER)]
    scheduler.resume(2)
    assert scheduler.expired(16.0) == []


@pytest.mark.parametrize("act", ["end", "resume", "pause", "played_token"])
def test_a_turn_that_is_not_there_raises(act: str) -> None:
    scheduler = Scheduler(Limits())
    with pytest.raises(TurnStateError):
        getattr(scheduler, act)(*([7, 0.0] if act == "pause" else [7]))


@pytest.mark.parametrize(
    "wrong", [{"active_turns": 0}, {"slots": 0}, {"slice_tokens": 0}, {"queue": -1}, {"active_turns": 3, "slots": 2}]
)
def test_limits_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


class Turns(RuleBasedStateMachine):
    """Whatever happens in whatever order: the bounds hold, nobody is lost, nobody starves."""

    @initialize(active=st.integers(1, 3), spare=st.integers(0, 2), slice_tokens=st.integers(1, 4))
    def begin(self, active: int, spare: int, slice_tokens: int) -> None:
        self.limits = Limits(active_turns=active, slots=active + spare, slice_tokens=slice_tokens)
        self.scheduler = Scheduler(self.limits)
        self.sessions: dict[int, int | None] = {}
        self.count = 0
        self.silent: dict[int, int] = {}  # tokens of others since a playing turn's last

    @rule(session=st.one_of(st.none(), st.integers(0, 2)), priority=st.integers(-1, 1))
    def enqueue(self, session: int | None, priority: int) -> None:
        self.scheduler.enqueue(self.count, session, priority)
        self.sessions[self.count] = session
        self.count += 1

    @rule(chunk=st.booleans())
    def step(self, chunk: bool) -> None:
        turn_id = self.scheduler.next_turn()
        if turn_id is None:
            return
        assert self.scheduler.state(turn_id) is TurnState.PLAYING
        for other in self.scheduler.ids(TurnState.PLAYING):
            self.silent[other] = 0 if other == turn_id else self.silent.get(other, 0) + 1
        if chunk:
            self.scheduler.played_chunk(turn_id)
        else:
            self.scheduler.played_token(turn_id)

    @precondition(lambda self: self.scheduler.ids(TurnState.PLAYING))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(self.scheduler.ids(TurnState.PLAYING)))
        self.scheduler.pause(turn_id, 0.0)
        self.silent.pop(turn_id, None)

    @precondition(lambda self: self.scheduler.ids(TurnState.PAUSED))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.scheduler.resume(data.draw(st.sampled_from(self.scheduler.ids(TurnState.PAUSED))))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(sorted(self.sessions)))
        self.scheduler.end(turn_id)
        del self.sessions[turn_id]
        self.silent.pop(turn_id, None)

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        playing = self.scheduler.ids(TurnState.PLAYING)
        holding = self.scheduler.ids(TurnState.PLAYING, TurnState.PAUSED, TurnState.READY)
        assert len(playing) <= self.limits.active_turns
        assert len(holding) <= self.limits.slots
        assert sorted(self.scheduler.ids(*TurnState)) == sorted(self.sessions)
        sessions = [self.sessions[turn_id] for turn_id in holding if self.sessions[turn_id] is not None]
        assert len(sessions) == len(set(sessions))
        assert all(n <= self.limits.active_turns * self.limits.slice_tokens for n in self.silent.values())

    @precondition(lambda self: self.sessions and not self.scheduler.ids(TurnState.PAUSED))
    @rule()
    def somebody_can_always_play(self) -> None:
        assert self.scheduler.next_turn() is not None


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_every_state_of_a_turn_can_end() -> None:
    held = [state for state in TurnState if state is not TurnState.ABSENT]
    assert all(TRANSITIONS[state, TurnAct.END] is TurnState.ABSENT for state in held)
