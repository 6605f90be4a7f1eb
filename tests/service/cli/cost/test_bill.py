"""Bills by hand: what is counted, and where two ways to serve cost the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.cli.cost.bill import (
    DAYS_PER_MONTH,
    HOURS_PER_MONTH,
    Traffic,
    bedrock_month,
    break_even,
    disk_hour,
    fargate_bill,
    instance_hour,
    node_month,
    own_bill,
)
from service.cli.cost.prices import read_prices
from service.cli.cost.speed import Speed, cpu_speed

PRICES = read_prices()
G5 = PRICES.instances["g5.xlarge"]
SPEED = Speed(answer=100.0, prompt=10_000.0)
TRAFFIC = Traffic(answers_per_day=864, tokens_per_answer=900, prompt_tokens=10_000, peak=1, most_busy=1)


def test_utilisation_is_busy_seconds_over_seconds_paid() -> None:
    # 1 s of prompt and 9 s of answer, 864 times a day: a tenth of the day.
    bill = own_bill(PRICES, G5, "on_demand", SPEED, TRAFFIC)
    assert bill.units == 1
    assert bill.utilisation == pytest.approx(0.1)
    at_day = own_bill(PRICES, G5, "on_demand", SPEED, replace(TRAFFIC, hours_per_day=2.4))
    assert at_day.units == 1
    assert at_day.utilisation == pytest.approx(1.0)


def test_nodes_are_counted_for_the_busiest_hour() -> None:
    crowded = replace(TRAFFIC, answers_per_day=8640)
    assert crowded.devices(SPEED) == 1
    assert replace(crowded, peak=2).devices(SPEED) == 2
    assert replace(crowded, peak=2, most_busy=0.5).devices(SPEED) == 4
    assert replace(crowded, answers_per_day=0).devices(SPEED) == 1
    eight = PRICES.instances["p5.48xlarge"]
    assert own_bill(PRICES, eight, "spot", SPEED, replace(crowded, peak=9)).units == 2


def test_a_month_on_demand_is_its_hours() -> None:
    hours = TRAFFIC.hours_per_month
    assert hours == pytest.approx(HOURS_PER_MONTH)
    assert node_month(PRICES, G5, "on_demand", hours) == pytest.approx((1.006 + disk_hour(PRICES)) * 730)
    assert disk_hour(PRICES) == pytest.approx(0.08 * 60 / 730)


def test_nights_off_cost_nothing_but_under_a_savings_plan() -> None:
    night = replace(TRAFFIC, hours_per_day=10, days_per_week=5)
    assert night.hours_per_month == pytest.approx(10 * DAYS_PER_MONTH * 5 / 7)
    day, all_day = night.hours_per_month, HOURS_PER_MONTH
    for payment in ("spot", "on_demand"):
        assert node_month(PRICES, G5, payment, day) == pytest.approx(
            node_month(PRICES, G5, payment, all_day) * day / all_day
        )
    spared = node_month(PRICES, G5, "savings_plan", all_day) - node_month(PRICES, G5, "savings_plan", day)
    assert spared == pytest.approx(disk_hour(PRICES) * (all_day - day))


def test_spot_pays_for_starts_and_for_hours_without_spot() -> None:
    spot, on_demand = G5.hourly["spot"].usd, G5.hourly["on_demand"].usd
    mixed = 0.95 * spot + 0.05 * on_demand
    assert instance_hour(PRICES, G5, "spot") == pytest.approx(mixed * (1 + 6 * 8 / 60 / 730))
    calm = replace(PRICES, spot=replace(PRICES.spot, interruptions_per_month=0, on_demand_share=0))
    assert instance_hour(calm, G5, "spot") == spot


def test_bedrock_counts_prompts_and_answers() -> None:
    hosted = PRICES.bedrock["llama-3.1-8b"]
    tokens = 864 * DAYS_PER_MONTH * (10_000 + 900)
    assert bedrock_month(hosted, TRAFFIC) == pytest.approx(tokens * 0.22 / 1e6)
    assert bedrock_month(hosted, TRAFFIC, batch=True) == pytest.approx(bedrock_month(hosted, TRAFFIC) / 2)


def test_fargate_takes_as_many_tasks_as_the_cpu_needs() -> None:
    quiet = Traffic(answers_per_day=10, tokens_per_answer=300, prompt_tokens=500)
    bill = fargate_bill(PRICES, quiet)
    assert bill.units == 1
    assert bill.total == pytest.approx((2 * 0.04048 + 4 * 0.004445) * 730)
    busy = replace(quiet, answers_per_day=5000)
    expected = 5000 * cpu_speed().busy_s(500, 300) * 2 / 0.7 / 86400
    assert fargate_bill(PRICES, busy).units == int(expected) + 1


@pytest.mark.parametrize(("rival", "expected"), [(lambda t: t.answers_per_day, 100), (lambda t: 50.0, None)])
def test_the_break_even_is_the_traffic_from_which_own_stays_below(rival: object, expected: float | None) -> None:
    assert callable(rival)
    found = break_even(TRAFFIC, lambda asked: 100.0, rival)
    assert found == (None if expected is None else pytest.approx(expected, rel=0.011))


def test_a_dip_below_the_rival_is_no_break_even() -> None:
    def own(asked: Traffic) -> float:
        return 10.0 if 10 < asked.answers_per_day < 20 else 1e9

    assert break_even(TRAFFIC, own, lambda asked: 100.0) is None


def test_without_traffic_there_is_a_bill_and_no_price_of_a_token() -> None:
    bill = own_bill(PRICES, G5, "spot", SPEED, replace(TRAFFIC, answers_per_day=0), platform=100.0)
    assert bill.total > 100
    assert bill.utilisation == 0
    assert bill.per_million == float("inf")
