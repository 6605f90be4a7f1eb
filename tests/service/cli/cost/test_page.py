"""docs/cost.md is what the prices say, and a price moves what depends on it and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service.cli.cost.figures import all_figures, cheapest_instance
from service.cli.cost.idle import PARTS
from service.cli.cost.page import CURVE, PAGE, digest, render
from service.cli.cost.prices import Instance, Price, Prices, read_prices

DOCS = Path(__file__).parents[4] / "docs"
PRICES = read_prices()
BEFORE = all_figures(PRICES)
CHEAPEST = cheapest_instance(PRICES)
AGAIN = "run `python -m service.cli.cost.page docs`"


def test_the_page_is_that_of_the_prices() -> None:
    assert (DOCS / PAGE).read_text(encoding="utf-8") == render(PRICES), AGAIN


def test_the_picture_is_that_of_the_prices() -> None:
    assert _description(DOCS / CURVE) == digest(PRICES), AGAIN


def test_the_picture_moves_with_a_price() -> None:
    assert digest(_dearer(PRICES, f"instances.{CHEAPEST}.spot")) != digest(PRICES)


def test_every_price_and_where_it_is_from_stands_on_the_page() -> None:
    page = render(PRICES)
    for place, price in PRICES.all():
        assert f"| `{place}` | {price.usd:g} | {price.seen} | {price.source} |" in page


@pytest.mark.parametrize("place", [place for place, _ in PRICES.all()])
def test_a_changed_price_changes_exactly_the_figures_that_depend_on_it(place: str) -> None:
    changed = _dearer(PRICES, place)
    assert cheapest_instance(changed) == CHEAPEST
    after = all_figures(changed)
    assert after.keys() == BEFORE.keys()
    moved = {name for name in BEFORE if after[name] != BEFORE[name]}
    depends = _dependence(place)
    # A break-even moves in steps of 1%, and one that does not exist may stay so.
    wrong = {name for name in BEFORE if depends(name) != (name in moved) and not name.startswith("even/")}
    assert not wrong
    assert {name for name in moved if name.startswith("even/")} <= {name for name in BEFORE if depends(name)}


def _dependence(place: str) -> Callable[[str], bool]:
    """Whether a figure of this name counts with the price at `place`."""
    kind, *rest = place.split(".")
    if kind == "instances":
        instance, payment = ".".join(rest[:-1]), rest[-1]
        # Spot counts on-demand hours in.
        payments = ("spot", "on_demand") if payment == "on_demand" else (payment,)

        def of_instance(name: str) -> bool:
            part = name.split("/")
            if part[0] in {"hour", "million", "month"}:
                return part[-2] == instance and part[-1] in payments
            if instance != CHEAPEST:
                return False
            return (part[0] in {"night", "even"} and part[-1] in payments) or (
                part[0] == "small-model" and "spot" in payments
            )

        return of_instance
    if kind == "bedrock":
        batch = rest[-1].startswith("batch")
        return lambda name: (
            ".".join(rest[:-1]) == "llama-3.1-8b"
            and (
                (name.startswith("bedrock/") and name.endswith("batch") == batch)
                or name.startswith("even/bedrock-batch/" if batch else "even/bedrock/")
            )
        )
    if kind == "fargate":
        return lambda name: name.startswith(("fargate/", "even/fargate"))
    return _platform_dependence(rest[0])


def _platform_dependence(item: str) -> Callable[[str], bool]:
    dev = any(part.item == item and part.dev for part in PARTS)
    production = any(part.item == item and part.production for part in PARTS)
    disk = item == "gp3_gb_month"

    def of_platform(name: str) -> bool:
        part = name.split("/")
        if part[0] == "idle":
            if part[1] == "endpoints":
                return item == "interface_endpoint_hour"
            return (dev if part[1] == "dev" else production) and part[-1] in {part[1], item}
        if part[0] in {"month", "night"} or part[:1] == ["small-model"]:
            return disk or (dev and part[-1] != "alone")
        if part[0] == "million":
            return disk
        if part[0] == "even":
            return disk or (dev and part[1] == "fargate")
        return False

    return of_platform


def _dearer(prices: Prices, place: str) -> Prices:
    """The same with 3% on one price: little enough that the cheapest instance type stays the cheapest."""

    def more(price: Price) -> Price:
        return replace(price, usd=price.usd * 1.03)

    kind, *rest = place.split(".")
    if kind == "fargate":
        if rest == ["gb_hour"]:
            return replace(prices, gb_hour=more(prices.gb_hour))
        return replace(prices, vcpu_hour=more(prices.vcpu_hour))
    if kind == "platform":
        return replace(prices, platform={**prices.platform, rest[0]: more(prices.platform[rest[0]])})
    name, part = ".".join(rest[:-1]), rest[-1]
    if kind == "bedrock":
        hosted = prices.bedrock[name]
        changed = replace(hosted, **{part: more(getattr(hosted, part))})
        return replace(prices, bedrock={**prices.bedrock, name: changed})
    old = prices.instances[name]
    instance = Instance(old.name, old.gpu, old.gpus, {**old.hourly, part: more(old.hourly[part])})
    return replace(prices, instances={**prices.instances, name: instance})


def _description(path: Path) -> str:
    """The text `Description` of a PNG."""
    data, at = path.read_bytes(), 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + length]
        if kind == b"tEXt" and content.startswith(b"Description\0"):
            return content.partition(b"\0")[2].decode("latin-1")
        at += length + 12
    raise AssertionError(f"{path} has no description")
