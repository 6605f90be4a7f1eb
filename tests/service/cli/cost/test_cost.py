"""`soloist cost` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from service.__main__ import main
from service.cli.cost.prices import DEFAULT_PRICES


def _json(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main(["cost", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_table_names_every_way_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"]) == 0
    printed = capsys.readouterr().out
    for expected in ("g5.xlarge", "g6e.xlarge", "p5.48xlarge", "spot", "on demand", "savings plan", "Bedrock batch"):
        assert expected in printed
    assert "speeds derived from an H200's" in printed
    assert all(len(line) <= 150 for line in printed.splitlines())


def test_json_has_the_figures_of_ones_own_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "--answers-per-day", "1000", "--instance", "g5.xlarge", "--platform", "none")
    own = found["own"]
    assert isinstance(own, list)
    assert [entry["payment"] for entry in own] == ["spot", "on_demand", "savings_plan"]
    assert {entry["speed"] for entry in own} == {"derived"}
    assert found["platform_month"] == 0
    assert own[1]["month"] == pytest.approx(1.006 * 730 + 4.8, rel=1e-6)
    assert own[1]["break_even"] == {"Bedrock": None, "Bedrock batch": None}


def test_a_measured_speed_takes_the_place_of_the_derived_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "--tokens-per-second", "40", "--instance", "g5.xlarge")
    assert isinstance(found["own"], list)
    assert {(entry["tokens_per_s"], entry["speed"]) for entry in found["own"]} == {(40.0, "measured by you")}


def test_ones_own_prices_are_counted_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    raw = yaml.safe_load(DEFAULT_PRICES.read_text(encoding="utf-8"))
    raw["instances"]["g5.xlarge"]["on_demand"]["usd"] = 2.0
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    found = _json(capsys, "--prices", str(path), "--instance", "g5.xlarge", "--platform", "none")
    assert isinstance(found["own"], list)
    assert found["own"][1]["month"] == pytest.approx(2.0 * 730 + 4.8)


def test_the_small_model_is_compared_with_fargate_and_not_with_a_hosted_8b(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(_rivals(_json(capsys, "--model", "smollm2-135m"))) == ["Fargate"]
    assert list(_rivals(_json(capsys, "--model-bytes", "7e9"))) == []
    assert list(_rivals(_json(capsys, "--bedrock", "llama-3.1-70b"))) == ["Bedrock", "Bedrock batch"]


def _rivals(found: dict[str, object]) -> dict[str, float]:
    assert isinstance(found["rivals"], dict)
    return found["rivals"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--hours", "25"], "--hours must be from 0.25 to 24, not 25"),
        (["--hours", "nan"], "--hours must be"),
        (["--answers-per-day", "-1"], "--answers-per-day must be from 0"),
        (["--most-busy", "0"], "--most-busy must be"),
        (["--instance", "g7.xlarge"], "'g7.xlarge' is not in the prices; there are g5.xlarge"),
        (["--bedrock", "gpt"], "'gpt' is not in the prices"),
        (["--tokens-per-second", "40"], "name it with --instance"),
        (["--model-bytes", "141e9"], "fits on no GPU of g5.xlarge"),
        (["--prices", "/nowhere/prices.yaml"], "--prices: /nowhere/prices.yaml: No such file"),
        (["--plot", "curve.pdf"], "ends in .png or .svg"),
        (["--plot", "/nowhere/curve.png"], "there is no folder"),
        (["--answer-per-day", "4"], "did you mean --answers-per-day?"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    assert main(["cost", *flags]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_curve_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve{suffix}"
    assert main(["cost", "--plot", str(path), "--answers-per-day", "0"]) == 0
    assert path.read_bytes().startswith(begins)


def test_it_starts_without_torch_and_without_the_network() -> None:
    program = (
        "import socket, sys\n"
        "socket.socket.connect = None\n"
        "from service.__main__ import main\n"
        "assert main(['cost', '--instance', 'g5.xlarge']) == 0\n"
        "assert not {'torch', 'grpc', 'numpy', 'matplotlib', 'prometheus_client'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
