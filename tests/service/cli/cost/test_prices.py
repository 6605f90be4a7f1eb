"""The file of prices: what it holds, and one line about each way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cli.cost.prices import DEFAULT_PRICES, PAYMENTS, UNCONFIRMED, UNDATED, PriceFileError, read_prices


@pytest.fixture
def raw() -> Any:
    return yaml.safe_load(DEFAULT_PRICES.read_text(encoding="utf-8"))


def test_the_table_of_the_project_is_dated_and_says_where_each_price_is_from() -> None:
    prices = read_prices()
    assert prices.date.year >= 2026
    assert prices.region == "us-east-1"
    families = {name.split(".")[0] for name in prices.instances}
    assert families == {"g5", "g6", "g6e", "p5"}
    for place, price in prices.all():
        assert len(price.source) > 10, place
        assert price.usd > 0, place
        assert price.seen in (UNCONFIRMED, UNDATED) or price.seen <= prices.date.isoformat(), place
    for instance in prices.instances.values():
        assert instance.hourly["spot"].usd < instance.hourly["savings_plan"].usd < instance.hourly["on_demand"].usd
    assert {price.seen for place, price in prices.all() if place.endswith(".on_demand")}.isdisjoint({UNCONFIRMED})


def test_every_instance_has_every_payment() -> None:
    for instance in read_prices().instances.values():
        assert set(instance.hourly) == set(PAYMENTS)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("instances.g5.xlarge.spot.usd", "cheap", "instances.g5.xlarge.spot.usd: 'cheap' is no number of 0 or more"),
        ("instances.g5.xlarge.spot.usd", -1, "-1 is no number"),
        ("instances.g5.xlarge.spot.usd", float("nan"), "nan is no number"),
        ("instances.g5.xlarge.spot.usd", True, "True is no number"),
        ("instances.g5.xlarge.spot.seen", "yesterday", "write 2026-06, undated or unconfirmed"),
        ("instances.g5.xlarge.spot.source", 7, "say in words"),
        ("instances.g5.xlarge.gpu", "A10", "'A10' is not below gpus; there are A10G"),
        ("instances.g5.xlarge.gpus", 0, "give 1 or more"),
        ("instances.g5.xlarge.on_demnd", 1, "'on_demnd' is not known here, did you mean 'on_demand'?"),
        ("instances", {}, "instances: must hold at least one name"),
        ("gpus.L4.bandwidth_gb_s", 0, "gpus.L4.bandwidth_gb_s: 0 is no number above 0"),
        ("spot.on_demand_share", 5, "give a share from 0 to 1"),
        ("platform.eks_cluster_hour", None, "platform.eks_cluster_hour: must hold usd, seen, source"),
        ("date", "soon", "date: 'soon' is no day"),
        ("region", 1, "region: 1 is no text"),
        ("region", "\x1b[31m\n evil", r"region: '\x1b[31m\n evil' is no text on one line"),
        ("instances.g5.xlarge.spot.source", "two\nlines", r"'two\nlines' is no text on one line; say in words"),
        ("gpus.\x1b[31m", {}, r"gpus: '\x1b[31m' is no text on one line"),
        ("instances.\x1b[31m", {}, r"instances: '\x1b[31m' is no text on one line"),
        ("bedrock.\x9b31m", {}, r"bedrock: '\x9b31m' is no text on one line"),
        ("fargate", [], "fargate: must hold vcpu_hour, gb_hour"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(raw: Any, tmp_path: Path, place: str, value: Any, says: str) -> None:
    _put(raw, place, value)
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(PriceFileError) as refused:
        read_prices(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["date", "platform", "bedrock"])
def test_a_missing_part_is_named(raw: Any, tmp_path: Path, name: str) -> None:
    del raw[name]
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(PriceFileError, match=f"'{name}' is missing"):
        read_prices(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"a: [", "line 1: is no YAML"), (b"\xff", "not UTF-8"), (b"", "must hold date"), (b"- 1", "must hold date")],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_bytes(content)
    with pytest.raises(PriceFileError, match=says):
        read_prices(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PriceFileError, match="No such file"):
        read_prices(tmp_path / "none.yaml")


def _put(raw: Any, place: str, value: Any) -> None:
    """Set one value; names of instance types hold a dot."""
    keys = place.replace("g5.xlarge", "g5/xlarge").split(".")
    for key in keys[:-1]:
        raw = raw[key.replace("/", ".")]
    raw[keys[-1]] = value
