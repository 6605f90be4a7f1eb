"""service.admission: the bound, the estimate, the refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.params import SamplingParams
from service.admission import Admission
from service.errors import (
    DeadlineExceededError,
    DeadlineUnmeetableError,
    DrainingError,
    QueueFullError,
    SessionBusyError,
)
from service.events import TurnRequest
from service.scheduler import Limits


def request(prompt: int = 10, **fields: Any) -> TurnRequest:
    return TurnRequest("r", tuple(range(prompt)), SamplingParams(), **fields)


def experienced(limits: Limits | None = None) -> Admission:
    """It has seen turns of 100 tokens, 10 ms a token, 1 ms a prompt token."""
    admission = Admission(limits or Limits())
    admission.learn_prefill(100, 0.1)
    admission.learn_token(0.01)
    admission.learn_turn(100)
    return admission


def test_promise_11_the_one_too_many_is_refused_with_a_time() -> None:
    admission = experienced(Limits(queue=16, active_turns=1))
    for turn_id in range(17):
        admission.admit(turn_id, request(), None, 0.0)
    with pytest.raises(QueueFullError) as refused:
        admission.admit(17, request(), None, 0.0)
    assert refused.value.queue_limit == 16
    assert 0.1 <= refused.value.retry_after_s <= 60.0
    admission.ended(0)
    admission.admit(17, request(), None, 0.0)


def test_draining_lets_nobody_in() -> None:
    admission = Admission(Limits())
    admission.draining = True
    with pytest.raises(DrainingError):
        admission.admit(1, request(), None, 0.0)


def test_predicted_wait_is_the_work_ahead() -> None:
    admission = experienced()
    assert admission.predicted_wait_s(0.0) == 0.0
    admission.admit(1, request(), None, 0.0)
    assert admission.predicted_wait_s(0.0) == pytest.approx(1.01)
    admission.started(1, 0.0)
    assert admission.predicted_wait_s(0.5) == pytest.approx(0.51)
    assert admission.predicted_wait_s(9.0) == pytest.approx(0.01)  # longer than expected: a token's time at least
    admission.admit(2, request(), None, 0.0)
    assert admission.predicted_wait_s(0.5) == pytest.approx(1.52)


def test_a_short_turn_ahead_is_expected_to_be_short() -> None:
    admission = experienced()
    short = TurnRequest("r", tuple(range(10)), SamplingParams(max_tokens=5))
    admission.admit(1, short, None, 0.0)
    assert admission.predicted_wait_s(0.0) == pytest.approx(0.06)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    admission = experienced()
    admission.admit(1, request(deadline_s=0.01), None, 0.0)  # idle: nothing better would come
    with pytest.raises(DeadlineUnmeetableError) as refused:
        admission.admit(2, request(deadline_s=0.5), None, 0.0)
    assert refused.value.predicted_s == pytest.approx(1.02)  # the turn ahead, and the prompt
    assert refused.value.retry_after_s == pytest.approx(0.52)
    admission.admit(2, request(deadline_s=2.1), None, 0.0)


def test_a_deadline_bounds_queue_prefill_and_decode_together() -> None:
    admission = experienced()
    admission.admit(1, request(), None, 0.0)
    with pytest.raises(DeadlineUnmeetableError) as refused:
        admission.admit(2, request(deadline_s=2.0), None, 0.0)  # alone it would take 1.01 s, and it waits as long
    assert refused.value.predicted_s == pytest.approx(2.02)
    short = TurnRequest("r", tuple(range(10)), SamplingParams(max_tokens=50), deadline_s=2.0)
    admission.admit(2, short, None, 0.0)


def test_an_answer_that_is_too_long_for_its_deadline_even_alone_is_let_in_and_cut() -> None:
    admission = experienced(Limits(active_turns=2))
    admission.admit(1, request(), None, 0.0)
    admission.admit(2, request(deadline_s=0.9), None, 0.0)


def test_turns_that_share_the_device_take_longer() -> None:
    admission = experienced(Limits(active_turns=2))
    admission.admit(1, request(), None, 0.0)
    admission.admit(2, request(), None, 0.0)
    with pytest.raises(DeadlineUnmeetableError) as refused:
        admission.admit(3, request(deadline_s=2.5), None, 0.0)
    assert refused.value.predicted_s == pytest.approx(1.01 + 0.01 + 2.0)


def test_what_a_session_has_read_is_not_read_again() -> None:
    admission = experienced(Limits(slots=2))
    admission.admit(1, request(900, session_id="s"), "s", 0.0)
    admission.ended(1)
    admission.admit(2, request(), None, 0.0)
    asked = {"session_id": "s", "deadline_s": 2.5}
    admission.admit(3, request(1000, **asked), "s", 0.0)
    admission.ended(3)
    with pytest.raises(DeadlineUnmeetableError):
        admission.admit(4, request(1000, session_id="t", deadline_s=1.5), "t", 0.0)
    for turn_id, other in ((5, "u"), (6, "v")):  # the session's context is given to others
        admission.admit(turn_id, request(session_id=other), other, 0.0)
        admission.ended(turn_id)
    with pytest.raises(DeadlineUnmeetableError):
        admission.admit(7, request(1000, **{**asked, "deadline_s": 1.5}), "s", 0.0)


def test_a_deadline_in_the_past_is_exceeded() -> None:
    with pytest.raises(DeadlineExceededError):
        Admission(Limits()).admit(1, request(deadline_s=1.0), None, 2.0)


def test_nothing_is_predicted_before_anything_is_known() -> None:
    admission = Admission(Limits())
    admission.admit(1, request(), None, 0.0)
    admission.admit(2, request(deadline_s=0.001), None, 0.0)
    assert admission.predicted_wait_s(0.0) == 0.0


def test_a_session_has_one_turn_playing_and_one_waiting() -> None:
    admission = Admission(Limits())
    for turn_id in (1, 2):
        admission.admit(turn_id, request(session_id="s"), "s", 0.0)
    admission.started(1, 0.0)
    with pytest.raises(SessionBusyError):
        admission.admit(3, request(session_id="s"), "s", 0.0)
    admission.admit(3, request(session_id="t"), "t", 0.0)
    admission.leaves(1)  # interrupted: the session may speak again, while the step under way still counts
    assert admission.in_flight == 3
    admission.admit(4, request(session_id="s"), "s", 0.0)


def test_a_turn_that_leaves_the_queue_makes_room_at_once() -> None:
    admission = Admission(Limits(queue=0, active_turns=1))
    admission.admit(1, request(), None, 0.0)
    admission.leaves(1)
    admission.started(1, 0.0)  # told late: it is gone all the same
    admission.admit(2, request(), None, 0.0)
    admission.ended(1)
    assert (admission.queued, admission.active) == (1, 0)


@given(
    st.lists(st.tuples(st.sampled_from(["admit", "start", "leave", "end"]), st.integers(0, 6)), max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_bound_holds_in_any_order(acts: list[tuple[str, int]], active: int, queue: int) -> None:
    admission = experienced(Limits(queue=queue, active_turns=active))
    inside: set[int] = set()
    started: set[int] = set()
    for now_s, (act, turn_id) in enumerate(acts):
        if act == "admit" and turn_id not in inside:
            try:
                admission.admit(turn_id, request(), None, float(now_s))
                inside.add(turn_id)
            except QueueFullError:
                assert len(inside) == active + queue
        elif act == "start":
            admission.started(turn_id, float(now_s))
            started |= {turn_id} & inside
        elif act == "leave":
            admission.leaves(turn_id)
            inside -= {turn_id} - started
        elif act == "end":
            admission.ended(turn_id)
            inside.discard(turn_id)
            started.discard(turn_id)
        assert admission.in_flight == len(inside) <= active + queue
        assert admission.active == len(started & inside)
        wait_s = admission.predicted_wait_s(float(now_s))
        assert wait_s >= 0.0
        assert (wait_s == 0.0) == (len(inside) < active)
