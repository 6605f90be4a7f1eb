"""The answer of `soloist cost`: one traffic, every way to serve it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.cli.bench.table import table
from service.cli.cost.bill import Bill, Traffic, bedrock_month, break_even, fargate_bill, instance_hour, own_bill
from service.cli.cost.curve import Line, Panel
from service.cli.cost.idle import platform_month
from service.cli.cost.prices import PAYMENTS, Instance, Prices
from service.cli.cost.speed import Speed, fits, gpu_speed

_COLOURS = {"spot": "#1f5fa8", "on_demand": "#7d4fa8", "savings_plan": "#3a9a5b"}

# The one model whose speed on a CPU was measured.
_CPU_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked for, checked.

    Attributes:
        model: one of the measured ones, None where only bytes are known.
        tokens_per_s: measured by the user on the one instance type in `wanted`; None where it is derived.
        wanted: instance types; empty takes all on which the model fits.
        platform: `dev`, `production` or `none`: the cluster that is counted in.
        bedrock: the hosted model to compare with, None for none.
    """

    prices: Prices
    traffic: Traffic
    model: str | None
    bytes_per_token: float
    tokens_per_s: float | None
    wanted: tuple[str, ...]
    platform: str
    bedrock: str | None

    @property
    def instances(self) -> list[Instance]:
        """Those that can play the model."""
        asked = self.wanted or tuple(self.prices.instances)
        found = (self.prices.instances[name] for name in asked)
        return [instance for instance in found if fits(instance.gpu, self.bytes_per_token)]

    def speed(self, instance: Instance) -> Speed:
        return gpu_speed(instance.gpu, self.bytes_per_token, self.tokens_per_s)

    def bill(self, instance: Instance, payment: str, traffic: Traffic) -> Bill:
        platform = platform_month(self.prices, self.platform)
        return own_bill(self.prices, instance, payment, self.speed(instance), traffic, platform)

    def rivals(self) -> dict[str, Callable[[Traffic], float]]:
        """Name -> dollars a month."""
        found: dict[str, Callable[[Traffic], float]] = {}
        if self.bedrock is not None:
            hosted = self.prices.bedrock[self.bedrock]
            found["Bedrock"] = lambda asked: bedrock_month(hosted, asked)
            found["Bedrock batch"] = lambda asked: bedrock_month(hosted, asked, batch=True)
        if self.model == _CPU_MODEL:
            found["Fargate"] = lambda asked: fargate_bill(self.prices, asked).total
        return found


@dataclass(frozen=True, slots=True)
class Own:
    """One instance type and payment. Dollars; tokens a second of one GPU; `busy` is a share of its time, 0 to 1.

    `break_even` has, for each rival, the least answers a day from which this is not dearer, or None.
    """

    instance: str
    payment: str
    tokens_per_s: float
    speed: str
    nodes: int
    busy: float
    hour: float
    month: float
    per_million_tokens: float
    break_even: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it, as `--json` prints it."""

    prices: str
    region: str
    tokens_per_month: float
    busy_seconds_per_answer: dict[str, float]
    platform_month: float
    own: list[Own]
    rivals: dict[str, float]


def answer(question: Question) -> Answer:
    """Count every way to serve the traffic."""
    traffic, prices, rivals = question.traffic, question.prices, question.rivals()
    own = []
    for instance in question.instances:
        for payment in PAYMENTS:
            bill = question.bill(instance, payment, traffic)

            def month(asked: Traffic, instance: Instance = instance, payment: str = payment) -> float:
                return question.bill(instance, payment, asked).total

            own.append(
                Own(
                    instance=instance.name,
                    payment=payment,
                    tokens_per_s=question.speed(instance).answer,
                    speed="derived" if question.tokens_per_s is None else "measured by you",
                    nodes=bill.units,
                    busy=bill.utilisation,
                    hour=instance_hour(prices, instance, payment),
                    month=bill.total,
                    per_million_tokens=bill.per_million,
                    break_even={name: break_even(traffic, month, rival) for name, rival in rivals.items()},
                )
            )
    return Answer(
        prices=prices.date.isoformat(),
        region=prices.region,
        tokens_per_month=traffic.million_tokens_per_month * 1e6,
        busy_seconds_per_answer={
            instance.name: question.speed(instance).busy_s(traffic.prompt_tokens, traffic.tokens_per_answer)
            for instance in question.instances
        },
        platform_month=platform_month(prices, question.platform),
        own=own,
        rivals={name: rival(traffic) for name, rival in rivals.items()},
    )


def text(question: Question, found: Answer) -> str:
    """The same for a person."""
    traffic, tokens = question.traffic, found.tokens_per_month / 1e6
    rows = [
        (
            own.instance,
            PAYMENTS[own.payment],
            f"{own.tokens_per_s:.0f}",
            str(own.nodes),
            f"{own.busy:.1%}",
            f"{own.hour:.3f}",
            f"{own.month:,.2f}",
            _per_million(own.month, tokens),
            *(_even(even) for even in own.break_even.values()),
        )
        for own in found.own
    ]
    rows += [
        (name, "", "", "", "", "", f"{month:,.2f}", _per_million(month, tokens), *("" for _ in found.rivals))
        for name, month in found.rivals.items()
    ]
    head = (
        "",
        "paid",
        "tok/s",
        "nodes",
        "busy",
        "$/hour",
        "$/month",
        "$/1M tokens",
        *(f"= {name}" for name in found.rivals),
    )
    asked = (
        f"{traffic.answers_per_day:,g} answers a day of {traffic.tokens_per_answer:,g} tokens after "
        f"{traffic.prompt_tokens:,g} of prompt, GPUs on {traffic.hours_per_day:g} h a day, "
        f"{traffic.days_per_week:g} days a week"
    )
    speeds = "derived from an H200's" if question.tokens_per_s is None else "as you measured"
    cluster = f"{found.platform_month:,.2f} a month, counted in" if found.platform_month else "not counted"
    lines = [
        f"{question.model or 'a model'}, {question.bytes_per_token / 1e9:.2f} GB a token: {asked}",
        f"prices of {found.prices}, {found.region}; cluster ({question.platform}) {cluster}; speeds {speeds}",
        "",
        table(head, rows),
        "",
        "nodes: for the busiest hour. busy: seconds of work over seconds paid. $/1M tokens: prompts counted too.",
    ]
    if found.rivals:
        lines.append("= NAME: answers a day from which this is not dearer than NAME.")
    if question.bedrock is not None:
        lines.append(f"Bedrock: the public {question.bedrock}, by the token; batch answers may take a day.")
    if "Fargate" in found.rivals:
        lines.append("Fargate: the CPU's speed as measured, the tasks alone.")
    return "\n".join(lines)


def picture(question: Question) -> Panel:
    """Dollars over traffic on the first instance type that was asked for, else on the cheapest at this traffic."""
    instance = (
        question.instances[0]
        if question.wanted
        else min(question.instances, key=lambda each: question.bill(each, "spot", question.traffic).total)
    )

    def own(payment: str) -> Line:
        def month(asked: Traffic) -> float:
            return question.bill(instance, payment, asked).total

        return Line(PAYMENTS[payment], _COLOURS[payment], month)

    shades = ("#c0392b", "#e08e1b", "#555555")
    rivals = zip(question.rivals().items(), shades, strict=False)
    lines = [*map(own, PAYMENTS), *(Line(name, shade, rival, rival=True) for (name, rival), shade in rivals)]
    yours = question.traffic.answers_per_day
    return Panel(
        f"{question.model or 'Your model'} on {instance.name}",
        question.traffic,
        lines,
        min(10.0, yours / 10 or 10.0),
        max(100_000.0, yours * 10),
        (yours, "your traffic") if yours else None,
    )


def _per_million(month: float, million_tokens: float) -> str:
    return f"{month / million_tokens:,.2f}" if million_tokens else "-"


def _even(answers: float | None) -> str:
    return "never" if answers is None else f"{float(f'{answers:.2g}'):,.0f}"
