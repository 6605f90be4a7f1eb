"""The order of leaving, as data."""

from __future__ import annotations

from service.ops.drain import Drain, DrainTimes, Phase
from service.settings import Settings

TIMES = DrainTimes(propagation_s=5.0, grace_s=60.0, ending_s=2.0)


def test_nothing_happens_without_a_signal() -> None:
    assert Drain(TIMES).tick(1e9, idle=True) is Phase.SERVING


def test_promise_04_the_phases_come_in_order_and_last_as_long_as_they_may() -> None:
    drain = Drain(TIMES)
    drain.signal(100.0)

    seen = [(now, drain.tick(now, idle=False)) for now in (100.0, 104.9, 105.0, 164.9, 165.0, 166.9, 167.0, 999.0)]

    assert [phase for _, phase in seen] == [
        Phase.PROPAGATING,
        Phase.PROPAGATING,
        Phase.FINISHING,
        Phase.FINISHING,
        Phase.ENDING,
        Phase.ENDING,
        Phase.STOPPED,
        Phase.STOPPED,
    ]


def test_the_longest_drain_is_every_phase_and_every_wait_of_the_stop() -> None:
    times = DrainTimes(
        propagation_s=1.0,
        grace_s=2.0,
        ending_s=4.0,
        engine_s=8.0,
        handlers_s=16.0,
        watchers_s=64.0,
        observers_s=128.0,
        log_s=256.0,
    )

    assert times.stop_s == 8.0 + 2 * 16.0 + 64.0 + 128.0 + 256.0, "handlers are waited for twice"
    assert times.total_s == 1.0 + 2.0 + 4.0 + times.stop_s


def test_promise_04_a_drain_by_default_is_shorter_than_the_notice_of_a_spot_node() -> None:
    settings = Settings()

    assert DrainTimes(settings.propagation_s, settings.grace_s).total_s <= 110.0


def test_an_idle_server_still_waits_for_balancers_and_then_stops_at_once() -> None:
    drain = Drain(TIMES)
    drain.signal(0.0)

    assert drain.tick(4.0, idle=True) is Phase.PROPAGATING
    assert drain.tick(5.0, idle=True) is Phase.STOPPED


def test_a_further_signal_ends_the_present_phase() -> None:
    drain = Drain(TIMES)
    drain.signal(0.0)
    drain.signal(1.0)
    assert drain.tick(1.0, idle=False) is Phase.FINISHING
    assert drain.left_s(1.0) == 60.0
    drain.signal(2.0)
    assert drain.tick(2.0, idle=False) is Phase.ENDING
    drain.signal(2.5)
    assert drain.tick(2.5, idle=False) is Phase.STOPPED


def test_a_look_that_comes_late_catches_up() -> None:
    drain = Drain(TIMES)
    drain.signal(0.0)

    assert drain.tick(66.0, idle=False) is Phase.ENDING
    assert drain.left_s(66.0) == 1.0


def test_a_hand_over_goes_through_the_phases_and_then_waits_for_the_signal() -> None:
    drain = Drain(TIMES)
    drain.hand_over(0.0)

    seen = [drain.tick(now_s, idle=False) for now_s in (0.0, 5.0, 65.0, 67.0, 1e6)]
    left_s = drain.left_s(1e6)
    drain.signal(1e6)

    assert seen == [Phase.PROPAGATING, Phase.FINISHING, Phase.ENDING, Phase.WAITING, Phase.WAITING]
    assert left_s == float("inf")
    assert drain.tick(1e6, idle=True) is Phase.STOPPED


def test_the_signal_of_a_node_that_was_heard_of_before_cuts_nothing_short() -> None:
    drain = Drain(TIMES)
    drain.hand_over(0.0)
    drain.signal(4.0)

    assert drain.tick(4.9, idle=True) is Phase.PROPAGATING
    assert drain.tick(5.0, idle=False) is Phase.FINISHING
    drain.signal(6.0)  # another one means what it always means
    assert drain.tick(6.0, idle=False) is Phase.ENDING
    assert drain.tick(8.0, idle=False) is Phase.STOPPED


def test_a_node_that_goes_is_no_news_to_a_server_that_leaves() -> None:
    drain = Drain(TIMES)
    drain.signal(0.0)
    drain.hand_over(3.0)

    assert drain.tick(5.0, idle=True) is Phase.STOPPED
