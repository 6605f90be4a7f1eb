"""What operators should see becomes an Event, and not a flood of them."""

from __future__ import annotations

import math

import pytest

from engine.events import (
    CaptureCause,
    CaptureOutcome,
    EagerReason,
    EngineEvent,
    GraphCaptured,
    PrefillDone,
    Progress,
    StepDone,
    VerifyMismatch,
)
from service.ops.cluster_events import AGAIN_S, EVERY_S, Kind, Notices, worth_telling


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (StepDone("b256", None, 0.01), None),
        (StepDone(None, EagerReason.NO_CUDA, 0.01), None),
        (StepDone(None, EagerReason.DISABLED, 0.01), None),
        (StepDone(None, EagerReason.WARMING_UP, 0.01), None),
        (StepDone(None, EagerReason.CAPTURE_FAILED, 0.01), Kind.EAGER_STEPS),
        (StepDone(None, EagerReason.CONTEXT_BEYOND_GRAPHS, 0.01), Kind.EAGER_STEPS),
        (StepDone(None, EagerReason.SELF_CHECK_FAILED, 0.01), Kind.EAGER_STEPS),
        (PrefillDone(512, 0.1), None),
        (PrefillDone(512, 0.1, eager=EagerReason.OUT_OF_MEMORY), Kind.EAGER_PREFILLS),
        (GraphCaptured("b256", CaptureCause.START, CaptureOutcome.CAPTURED, 0.1, 0), None),
        (GraphCaptured("b256", CaptureCause.START, CaptureOutcome.FAILED, 0.1, 0), Kind.CAPTURE_FAILED),
        (VerifyMismatch("b256", 7, 1, 2), Kind.REPLAY_WRONG),
        (Progress("load", 1, 2, "bytes"), None),
    ],
)
def test_only_what_should_not_be_is_told(event: EngineEvent, kind: Kind | None) -> None:
    told = worth_telling(event)
    assert (told and told[0]) == kind


def test_a_kind_is_told_at_once_and_then_with_a_count_now_and_then() -> None:
    notices = Notices()

    heard = [notices.hear(Kind.EAGER_STEPS, "slow", now_s) for now_s in (0.0, 1.0, 2.0, EVERY_S - 1, EVERY_S)]

    assert heard == [True, False, False, False, True]
    assert [notice.note for notice in notices.take(EVERY_S)] == ["slow", "slow; 3 more since it was told last"]
    assert notices.take(EVERY_S) == []
    assert notices.due_s() == math.inf


def test_kinds_and_what_they_are_about_do_not_hide_each_other() -> None:
    notices = Notices()

    assert notices.hear(Kind.EAGER_STEPS, "slow", 0.0)
    assert notices.hear(Kind.EAGER_STEPS, "too long", 0.0)
    assert notices.hear(Kind.CAPTURE_FAILED, "slow", 0.0, about="b256")
    assert not notices.hear(Kind.CAPTURE_FAILED, "slow", 0.0, about="b512")
    assert len(notices.take(0.0)) == 3


def test_what_was_not_heard_is_told_again_later_and_before_what_is_new() -> None:
    notices = Notices()
    notices.hear(Kind.CAPTURE_FAILED, "first", 0.0)
    notices.put_back(notices.take(0.0), 1.0)
    notices.hear(Kind.EAGER_STEPS, "second", 2.0)

    assert notices.take(2.0) == []
    assert notices.due_s() == 1.0 + AGAIN_S
    assert [notice.note for notice in notices.take(1.0 + AGAIN_S)] == ["first", "second"]


def test_the_api_takes_each_reason_and_action() -> None:
    for kind in Kind:
        reason, action, _ = kind.value
        assert reason.isalnum()
        assert action.isalnum()
        assert len(reason) <= 128
