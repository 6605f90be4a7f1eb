"""`soloist serve` as an operator meets it: the ready line, mistakes, a port that is taken, the way out."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.client import ChatClient
from tests.checkpoints import write_tiny_folder
from tests.service.cli.terminal import CTRL_C, terminal

SERVE = (sys.executable, "-m", "service", "serve", "--device", "cpu", "--threads", "1")
ANY_PORT = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_folder(tmp_path / "tiny")


def refused(environment: dict[str, str], *flags: str) -> tuple[int, str]:
    done = subprocess.run([*SERVE, *flags], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def logged(stderr: str) -> list[dict[str, Any]]:
    """Every line of a log that no person reads is JSON."""
    return [json.loads(line) for line in stderr.splitlines()]


def test_ready_line_then_an_answer_then_sigterm(model: Path, environment: dict[str, str]) -> None:
    command = [*SERVE, *ANY_PORT, "--model", str(model), "--propagation-s", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    ready = next(entry for entry in map(json.loads, lines) if entry["message"] == "ready")
    assert (ready["model"], ready["device"], ready["graphs"]) == ("tiny", "cpu", "none: no_cuda")

    async def ask() -> int:
        async with ChatClient(ready["grpc"]) as client:
            return (await client.ask("Hello", max_tokens=3, temperature=0)).finished.completion_tokens

    assert asyncio.run(ask()) >= 1
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert logged(rest)[-1]["message"] == "stopped"


def test_on_a_terminal_lines_are_for_people_and_ctrl_c_leaves(model: Path, environment: dict[str, str]) -> None:
    with terminal([*SERVE, *ANY_PORT, "--model", str(model)], environment) as shown:
        shown.expect("load")
        shown.expect("100%")
        line = shown.expect("metrics=127.0.0.1:")
        assert re.search(r"ready {2}model=tiny {2}device=cpu {2}precision=float32 {2}graphs=none: no_cuda", line)
        shown.type(CTRL_C)
        assert shown.leave() == 0


def test_a_model_that_is_not_there(environment: dict[str, str], tmp_path: Path) -> None:
    code, stderr = refused(environment, *ANY_PORT, "--model", str(tmp_path / "nothing"))
    assert code == 1
    told = next(entry for entry in logged(stderr) if entry["message"] == "cannot start")
    assert "no such file" in told["error"]


def test_a_port_that_is_taken(environment: dict[str, str], model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, stderr = refused(environment, "--listen", address, "--metrics-listen", "off", "--model", str(model))
    assert code == 1
    assert address in logged(stderr)[-1]["error"]


@pytest.mark.parametrize(
    ("flags", "variables", "said"),
    [
        (("--listen", "nonsense"), {}, "HOST:PORT"),
        (("--queue-depth", "0"), {}, "whole number from 1"),
        (("--graphs", "maybe"), {}, "on, off, strict"),
        (("--config", "/nowhere/soloist.yaml"), {}, "/nowhere/soloist.yaml"),
        ((), {"SOLOIST_QEUE_DEPTH": "3"}, "did you mean SOLOIST_QUEUE_DEPTH?"),
    ],
)
def test_a_wrong_setting_is_one_line(
    environment: dict[str, str], flags: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    code, stderr = refused({**environment, **variables}, *flags)
    assert code == 2
    assert len(stderr.splitlines()) == 1
    assert said in stderr
