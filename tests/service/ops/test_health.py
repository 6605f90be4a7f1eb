"""Readiness goes forward only, and tells who listens."""

from __future__ import annotations

import pytest

from service.ops.health import Health, Question, Readiness


def test_it_begins_loading_and_goes_forward() -> None:
    health = Health()
    seen: list[Readiness] = []
    health.subscribe(seen.append)

    serving = [health.serving]
    for to in (Readiness.SERVING, Readiness.SERVING, Readiness.DRAINING, Readiness.ENGINE_LOST):
        health.move(to)
        serving.append(health.serving)

    assert seen == [Readiness.SERVING, Readiness.DRAINING, Readiness.ENGINE_LOST]
    assert serving == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("state", "to"),
    [
        (Readiness.SERVING, Readiness.LOADING),
        (Readiness.UNSOUND, Readiness.SERVING),
        (Readiness.DRAINING, Readiness.SERVING),
        (Readiness.ENGINE_LOST, Readiness.SERVING),
        (Readiness.ENGINE_LOST, Readiness.DRAINING),
    ],
)
def test_eng_05_it_never_goes_back(state: Readiness, to: Readiness) -> None:
    health = Health()
    health.move(state)

    with pytest.raises(ValueError, match=f"from {state} to {to}"):
        health.move(to)


def test_who_left_hears_no_more() -> None:
    health = Health()
    seen: list[Readiness] = []
    health.subscribe(seen.append)()

    health.move(Readiness.SERVING)

    assert not seen


LOADING, SERVING, UNSOUND = Readiness.LOADING, Readiness.SERVING, Readiness.UNSOUND
DRAINING, LOST = Readiness.DRAINING, Readiness.ENGINE_LOST


@pytest.mark.parametrize(
    ("path", "loaded", "yes_to"),
    [
        ([], False, {Question.LIVENESS}),
        ([SERVING], True, {Question.READINESS, Question.LIVENESS, Question.STARTUP}),
        ([UNSOUND], False, {Question.LIVENESS}),  # found while its graphs were still captured
        ([UNSOUND], True, {Question.LIVENESS, Question.STARTUP}),
        ([SERVING, DRAINING], True, {Question.LIVENESS, Question.STARTUP}),
        ([DRAINING], False, {Question.LIVENESS}),  # told to leave while it loads
        ([SERVING, LOST], True, set()),
        ([SERVING, DRAINING, LOST], True, set()),
    ],
)
def test_k8s_01_readiness_liveness_and_startup_are_three_questions(
    path: list[Readiness], loaded: bool, yes_to: set[Question]
) -> None:
    health = Health()
    if loaded:
        health.loaded()
    for to in path:
        health.move(to)

    assert {question for question in Question if health.says_yes_to(question)} == yes_to
