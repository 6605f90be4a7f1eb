"""Readiness goes forward only, and tells who listens."""

from __future__ import annotations

import pytest

from service.ops.health import Health, Readiness


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
