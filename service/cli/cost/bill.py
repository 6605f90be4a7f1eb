"""What serving costs a month on nodes of one's own, on Fargate and at Bedrock: traffic and prices in, dollars out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from service.cli.cost.prices import Bedrock, Instance, Prices
from service.cli.cost.speed import CPU_MEMORY_GB, CPU_VCPUS, Speed, cpu_speed

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = 365 / 12

# The root volume of a GPU node, as helm/soloist-nodes asks for it. It exists while the node does.
NODE_DISK_GB = 60

# Traffic among which a break-even is looked for, answers a day: each step 1% less.
_LEAST_ANSWERS, _MOST_ANSWERS, _STEP = 1.0, 1e7, 1.01


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked, and when GPUs are there to answer.

    Attributes:
        answers_per_day: on a day on which GPUs run.
        hours_per_day: that GPUs run, 24 or less (a night schedule).
        days_per_week: on which they do.
        peak: answers in the busiest hour over those in the mean hour. Nodes are counted for the busiest one.
        most_busy: share of a GPU's time that the busiest hour may take. Above it readers wait for each other too long.
    """

    answers_per_day: float
    tokens_per_answer: float
    prompt_tokens: float
    hours_per_day: float = 24.0
    days_per_week: float = 7.0
    peak: float = 2.0
    most_busy: float = 0.7

    @property
    def days_per_month(self) -> float:
        return DAYS_PER_MONTH * self.days_per_week / 7

    @property
    def hours_per_month(self) -> float:
        return self.hours_per_day * self.days_per_month

    @property
    def answers_per_month(self) -> float:
        return self.answers_per_day * self.days_per_month

    @property
    def million_tokens_per_month(self) -> float:
        """Prompts and answers, as Bedrock counts them."""
        return self.answers_per_month * (self.prompt_tokens + self.tokens_per_answer) / 1e6

    def busy_hours_per_day(self, speed: Speed) -> float:
        """GPU hours of work: at batch 1 nothing is shared, so this is answers times seconds."""
        return self.answers_per_day * speed.busy_s(self.prompt_tokens, self.tokens_per_answer) / 3600

    def devices(self, speed: Speed) -> int:
        """Devices that the busiest hour needs, 1 at least."""
        needed = self.busy_hours_per_day(speed) * self.peak / (self.hours_per_day * self.most_busy)
        return max(1, math.ceil(needed - 1e-9))


@dataclass(frozen=True, slots=True)
class Bill:
    """One way to serve a traffic.

    Attributes:
        units: nodes or tasks.
        utilisation: busy seconds over the seconds that devices run, 0 to 1.
        serving: dollars a month of the nodes or tasks.
        platform: dollars a month of what is there before the first answer.
        per_million: dollars for a million tokens, prompts included.
    """

    units: int
    utilisation: float
    serving: float
    platform: float
    per_million: float

    @property
    def total(self) -> float:
        return self.serving + self.platform


def disk_hour(prices: Prices) -> float:
    """Dollars an hour of a node's volume."""
    return prices.platform["gp3_gb_month"].usd * NODE_DISK_GB / HOURS_PER_MONTH


def instance_hour(prices: Prices, instance: Instance, payment: str) -> float:
    """Dollars an hour of one node without its volume; for spot with interruptions and on-demand hours in between."""
    price = instance.hourly[payment].usd
    if payment != "spot":
        return price
    spot = prices.spot
    mixed = price * (1 - spot.on_demand_share) + instance.hourly["on_demand"].usd * spot.on_demand_share
    # A node that starts is paid and does not serve yet; the one that goes serves till its end.
    return mixed * (1 + spot.interruptions_per_month * spot.restart_minutes / 60 / HOURS_PER_MONTH)


def node_month(prices: Prices, instance: Instance, payment: str, hours: float) -> float:
    """Dollars a month of one node that runs `hours` of it."""
    # A savings plan is a promise to pay each hour, nights included.
    paid = HOURS_PER_MONTH if payment == "savings_plan" else hours
    return instance_hour(prices, instance, payment) * paid + disk_hour(prices) * hours


def own_bill(
    prices: Prices, instance: Instance, payment: str, speed: Speed, traffic: Traffic, platform: float = 0.0
) -> Bill:
    """On nodes of one's own, `platform` dollars a month for what else the cluster costs."""
    nodes = math.ceil(traffic.devices(speed) / instance.gpus)
    serving = nodes * node_month(prices, instance, payment, traffic.hours_per_month)
    busy = traffic.busy_hours_per_day(speed) / (nodes * instance.gpus * traffic.hours_per_day)
    return Bill(nodes, busy, serving, platform, _per_million(serving + platform, traffic))


def fargate_bill(prices: Prices, traffic: Traffic) -> Bill:
    """The embedded model on Fargate: tasks alone, without a cluster, a load balancer or NAT."""
    speed = cpu_speed()
    tasks = traffic.devices(speed)
    hour = CPU_VCPUS * prices.vcpu_hour.usd + CPU_MEMORY_GB * prices.gb_hour.usd
    serving = tasks * hour * traffic.hours_per_month
    busy = traffic.busy_hours_per_day(speed) / (tasks * traffic.hours_per_day)
    return Bill(tasks, busy, serving, 0.0, _per_million(serving, traffic))


def bedrock_month(hosted: Bedrock, traffic: Traffic, *, batch: bool = False) -> float:
    """Dollars a month at Bedrock."""
    asked, answered = (hosted.batch_input, hosted.batch_output) if batch else (hosted.input, hosted.output)
    dollars = traffic.prompt_tokens * asked.usd + traffic.tokens_per_answer * answered.usd
    return traffic.answers_per_month * dollars / 1e6


def never_idle_per_million(prices: Prices, instance: Instance, payment: str, speed: Speed) -> float:
    """Dollars for a million tokens of answers from a node that never pauses: a floor that no traffic reaches."""
    hour = instance_hour(prices, instance, payment) + disk_hour(prices)
    return hour / (speed.answer * instance.gpus * 3600) * 1e6


def break_even(traffic: Traffic, own: Callable[[Traffic], float], rival: Callable[[Traffic], float]) -> float | None:
    """Least answers a day from which `own` dollars a month stay below `rival`'s, to 1%; None where there are none."""
    found = None
    # From the most downwards: steps of nodes make dips, and what stays below is what has no other above it.
    answers = _MOST_ANSWERS
    while answers >= _LEAST_ANSWERS:
        asked = replace(traffic, answers_per_day=answers)
        if own(asked) > rival(asked):
            break
        found = answers
        answers /= _STEP
    return found


def _per_million(dollars: float, traffic: Traffic) -> float:
    tokens = traffic.million_tokens_per_month
    return dollars / tokens if tokens else math.inf
