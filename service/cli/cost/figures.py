"""Every figure of docs/cost.md by name: one source for the page and for the test of changed prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from service.cli.cost.bill import (
    Bill,
    Traffic,
    bedrock_month,
    break_even,
    fargate_bill,
    instance_hour,
    never_idle_per_million,
    own_bill,
)
from service.cli.cost.idle import ENDPOINT_HOURS, PARTS, SHAPES, platform_month
from service.cli.cost.prices import PAYMENTS, Prices
from service.cli.cost.speed import MEASURED, fits, gpu_speed

LARGE, SMALL = "llama-3.1-8b", "smollm2-135m"

TRAFFIC = {
    "small": Traffic(answers_per_day=200, tokens_per_answer=300, prompt_tokens=500),
    "medium": Traffic(answers_per_day=5000, tokens_per_answer=300, prompt_tokens=500),
}
# Working hours: 10 hours on weekdays.
NIGHT_OFF = {"hours_per_day": 10.0, "days_per_week": 5.0}

Figures = dict[str, float | None]


def with_night_off(traffic: Traffic) -> Traffic:
    """The same answers on days on which GPUs run, which are fewer."""
    return replace(traffic, **NIGHT_OFF)


def bill_of(prices: Prices, name: str, payment: str, model: str, traffic: Traffic, platform: str = "dev") -> Bill:
    """What `traffic` costs on one instance type of the file with one of the measured models."""
    instance = prices.instances[name]
    speed = gpu_speed(instance.gpu, MEASURED[model].bytes_per_token)
    return own_bill(prices, instance, payment, speed, traffic, platform_month(prices, platform))


def all_figures(prices: Prices) -> Figures:
    """Name -> dollars, tokens a second, nodes or answers a day; None is a break-even that does not exist."""
    found: Figures = {}
    for name, instance in prices.instances.items():
        if not fits(instance.gpu, MEASURED[LARGE].bytes_per_token):
            continue
        speed = gpu_speed(instance.gpu, MEASURED[LARGE].bytes_per_token)
        found[f"speed/{name}"] = speed.answer
        for payment in PAYMENTS:
            found[f"hour/{name}/{payment}"] = instance_hour(prices, instance, payment)
            found[f"million/{name}/{payment}"] = never_idle_per_million(prices, instance, payment, speed)
            for size, traffic in TRAFFIC.items():
                bill = bill_of(prices, name, payment, LARGE, traffic)
                found[f"month/{size}/{name}/{payment}"] = bill.total
                found[f"nodes/{size}/{name}"] = bill.units
                found[f"busy/{size}/{name}"] = bill.utilisation
    cheapest = cheapest_instance(prices)
    hosted = prices.bedrock[LARGE]
    for size, traffic in TRAFFIC.items():
        night = with_night_off(traffic)
        for payment in PAYMENTS:
            found[f"night/{size}/{payment}"] = bill_of(prices, cheapest, payment, LARGE, night).total
        found[f"bedrock/{size}"] = bedrock_month(hosted, traffic)
        found[f"bedrock/{size}/batch"] = bedrock_month(hosted, traffic, batch=True)
        found[f"fargate/{size}"] = fargate_bill(prices, traffic).total
        found[f"small-model/{size}/spot"] = bill_of(prices, cheapest, "spot", SMALL, traffic).total
        found[f"small-model/{size}/alone"] = bill_of(prices, cheapest, "spot", SMALL, traffic, "none").total
    found |= _break_evens(prices, cheapest)
    for shape in SHAPES:
        for part in PARTS:
            found[f"idle/{shape}/{part.item}"] = part.month(prices, shape)
        found[f"idle/{shape}"] = platform_month(prices, shape)
    found["idle/endpoints"] = ENDPOINT_HOURS * prices.platform["interface_endpoint_hour"].usd
    return found


def cheapest_instance(prices: Prices) -> str:
    """The instance type with the least dollars for a million tokens of the larger model, on spot and never idle."""

    def cost(name: str) -> float:
        instance = prices.instances[name]
        speed = gpu_speed(instance.gpu, MEASURED[LARGE].bytes_per_token)
        return never_idle_per_million(prices, instance, "spot", speed)

    fitting = [
        name for name, instance in prices.instances.items() if fits(instance.gpu, MEASURED[LARGE].bytes_per_token)
    ]
    return min(fitting, key=cost)


def _break_evens(prices: Prices, cheapest: str) -> Figures:
    traffic, hosted = TRAFFIC["small"], prices.bedrock[LARGE]
    fargate: Callable[[Traffic], float] = lambda asked: fargate_bill(prices, asked).total  # noqa: E731
    found: Figures = {}
    for payment in PAYMENTS:

        def large(asked: Traffic, payment: str = payment) -> float:
            # Without the cluster: what stands below this is dearer than Bedrock whatever else one has.
            return bill_of(prices, cheapest, payment, LARGE, asked, "none").total

        def small(asked: Traffic, payment: str = payment) -> float:
            return bill_of(prices, cheapest, payment, SMALL, asked, "dev").total

        def small_alone(asked: Traffic, payment: str = payment) -> float:
            return bill_of(prices, cheapest, payment, SMALL, asked, "none").total

        found[f"even/bedrock/{payment}"] = break_even(traffic, large, lambda asked: bedrock_month(hosted, asked))
        found[f"even/bedrock-batch/{payment}"] = break_even(
            traffic, large, lambda asked: bedrock_month(hosted, asked, batch=True)
        )
        found[f"even/fargate/{payment}"] = break_even(traffic, small, fargate)
        found[f"even/fargate-alone/{payment}"] = break_even(traffic, small_alone, fargate)
    return found
