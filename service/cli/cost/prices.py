"""The table of prices: a YAML file that a user may replace, read once and refused with one line where it is wrong."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEFAULT_PRICES = Path(__file__).with_name("prices.yaml")
# As the file calls them -> as people do. A savings plan is the 1-year EC2 Instance one without upfront.
PAYMENTS = {"spot": "spot", "on_demand": "on demand", "savings_plan": "savings plan"}
UNCONFIRMED, UNDATED = "unconfirmed", "undated"

PLATFORM_ITEMS = (
    "eks_cluster_hour", "nat_gateway_hour", "nat_gateway_gb", "public_ipv4_hour", "interface_endpoint_hour",
    "system_node_hour", "gp3_gb_month", "s3_gb_month", "ecr_gb_month", "cloudwatch_alarm_month",
    "cloudwatch_dashboard_month", "cloudwatch_logs_gb", "container_insights_million", "kms_key_month",
)  # fmt: skip


class PriceFileError(Exception):
    """The file of prices cannot be used. The text says where, what, and what would be right."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for one unit, the month when a public source showed it (or `undated`, `unconfirmed`), and that source."""

    usd: float
    seen: str
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by its data sheet: memory in 10^9 bytes, bandwidth in 10^9 bytes/s, dense bf16 in 10^12 operations/s."""

    name: str
    memory_gb: float
    bandwidth_gb_s: float
    bf16_tflops: float


@dataclass(frozen=True, slots=True)
class Instance:
    """One EC2 instance type and its dollars an hour, by payment."""

    name: str
    gpu: Gpu
    gpus: int
    hourly: Mapping[str, Price]


@dataclass(frozen=True, slots=True)
class SpotOverhead:
    """Assumptions on what spot costs beyond its price."""

    interruptions_per_month: float
    restart_minutes: float
    on_demand_share: float


@dataclass(frozen=True, slots=True)
class Bedrock:
    """Dollars for a million tokens of one hosted model."""

    input: Price
    output: Price
    batch_input: Price
    batch_output: Price


@dataclass(frozen=True, slots=True)
class Prices:
    """All of the file."""

    date: dt.date
    region: str
    instances: Mapping[str, Instance]
    spot: SpotOverhead
    platform: Mapping[str, Price]
    bedrock: Mapping[str, Bedrock]
    vcpu_hour: Price
    gb_hour: Price

    def all(self) -> Iterator[tuple[str, Price]]:
        """Every price with its dotted place in the file."""
        for instance in self.instances.values():
            for payment in PAYMENTS:
                yield f"instances.{instance.name}.{payment}", instance.hourly[payment]
        for item, price in self.platform.items():
            yield f"platform.{item}", price
        for model, hosted in self.bedrock.items():
            for part in Bedrock.__slots__:
                yield f"bedrock.{model}.{part}", getattr(hosted, part)
        yield "fargate.vcpu_hour", self.vcpu_hour
        yield "fargate.gb_hour", self.gb_hour


def read_prices(path: Path = DEFAULT_PRICES) -> Prices:
    """The table in `path`.

    Raises:
        PriceFileError: it cannot be read, or something in it is missing, unknown or no price.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PriceFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PriceFileError(f"{path}: is not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise PriceFileError(f"{path}{where}: is no YAML that can be read") from None
    try:
        return _prices(raw)
    except PriceFileError as error:
        raise PriceFileError(f"{path}: {error}") from None


def _prices(raw: Any) -> Prices:
    top = _fields(raw, "", "date", "region", "gpus", "instances", "spot", "platform", "bedrock", "fargate")
    date = top["date"]
    if not isinstance(date, dt.date) or isinstance(date, dt.datetime):
        raise PriceFileError(f"date: {date!r} is no day; write it as 2026-12-01")
    region = _text(top["region"], "region", "write it as us-east-1")
    gpus = {}
    for name, value in _named(top["gpus"], "gpus").items():
        gpu = _fields(value, f"gpus.{name}", "memory_gb", "bandwidth_gb_s", "bf16_tflops")
        gpus[name] = Gpu(name, *(_number(gpu[key], f"gpus.{name}.{key}", above_zero=True) for key in gpu))
    spot = _fields(top["spot"], "spot", *SpotOverhead.__slots__)
    share = _number(spot["on_demand_share"], "spot.on_demand_share")
    if share > 1:
        raise PriceFileError(f"spot.on_demand_share: {share:g} is more than all hours; give a share from 0 to 1")
    fargate = _fields(top["fargate"], "fargate", "vcpu_hour", "gb_hour")
    platform = _fields(top["platform"], "platform", *PLATFORM_ITEMS)
    return Prices(
        date=date,
        region=region,
        instances={name: _instance(name, value, gpus) for name, value in _named(top["instances"], "instances").items()},
        spot=SpotOverhead(
            _number(spot["interruptions_per_month"], "spot.interruptions_per_month"),
            _number(spot["restart_minutes"], "spot.restart_minutes"),
            share,
        ),
        platform={item: _price(platform[item], f"platform.{item}") for item in PLATFORM_ITEMS},
        bedrock={name: _bedrock(name, value) for name, value in _named(top["bedrock"], "bedrock").items()},
        vcpu_hour=_price(fargate["vcpu_hour"], "fargate.vcpu_hour"),
        gb_hour=_price(fargate["gb_hour"], "fargate.gb_hour"),
    )


def _instance(name: str, value: Any, gpus: Mapping[str, Gpu]) -> Instance:
    place = f"instances.{name}"
    fields = _fields(value, place, "gpu", "gpus", *PAYMENTS)
    if fields["gpu"] not in gpus:
        raise PriceFileError(f"{place}.gpu: {fields['gpu']!r} is not below gpus; there are {', '.join(gpus)}")
    count = fields["gpus"]
    if type(count) is not int or count < 1:
        raise PriceFileError(f"{place}.gpus: {count!r} is no number of GPUs; give 1 or more")
    hourly = {payment: _price(fields[payment], f"{place}.{payment}") for payment in PAYMENTS}
    return Instance(name, gpus[fields["gpu"]], count, hourly)


def _bedrock(name: str, value: Any) -> Bedrock:
    fields = _fields(value, f"bedrock.{name}", *Bedrock.__slots__)
    return Bedrock(*(_price(fields[part], f"bedrock.{name}.{part}") for part in Bedrock.__slots__))


def _price(value: Any, place: str) -> Price:
    fields = _fields(value, place, "usd", "seen", "source")
    seen = str(fields["seen"])
    if seen not in (UNCONFIRMED, UNDATED) and not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", seen):
        raise PriceFileError(f"{place}.seen: {seen!r} is no month; write 2026-06, {UNDATED} or {UNCONFIRMED}")
    source = _text(fields["source"], f"{place}.source", "say in words where the price is from")
    return Price(_number(fields["usd"], f"{place}.usd"), seen, source)


def _text(value: Any, place: str, right: str) -> str:
    """One line that a terminal shows as it is: it is printed, and the file may be anybody's."""
    if not isinstance(value, str) or not value.isprintable():
        raise PriceFileError(f"{place}: {ascii(value)[:120]} is no text on one line; {right}")
    return value


def _number(value: Any, place: str, *, above_zero: bool = False) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9 or (above_zero and value == 0):
        least = "above 0" if above_zero else "of 0 or more"
        raise PriceFileError(f"{place}: {value!r} is no number {least}")
    return float(value)


def _named(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value):
        raise PriceFileError(f"{place}: must hold at least one name with its entry")
    for name in value:
        _text(name, place, "name it as people do, without control characters")
    return value


def _fields(value: Any, place: str, *names: str) -> dict[str, Any]:
    """`value` if it holds exactly `names`, in that order."""
    here = f"{place}: " if place else ""
    if not isinstance(value, dict):
        raise PriceFileError(f"{here}must hold {', '.join(names)}")
    for name in value:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            raise PriceFileError(f"{here}{name!r} is not known here{f', did you mean {close[0]!r}?' if close else ''}")
    for name in names:
        if name not in value:
            raise PriceFileError(f"{here}{name!r} is missing")
    return {name: value[name] for name in names}
