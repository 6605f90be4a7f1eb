"""A server whose standard error is a pipe that nobody reads: turns go on, and it leaves when told to."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.client import ChatClient
from tests.running_server import await_serving, free_ports
from tests.service.test_app import environment

ROOM_BYTES = 4000
TURNS = 60
SERVE = f"""
import functools, sys
import service.app, service.ops.logs, service.process
from service.settings import load_settings
from tests.fakes import FakeEngine, saying
service.app.engine_factory = lambda config: FakeEngine(answer=saying("the answer")).opener()
service.ops.logs.LineHandler = functools.partial(service.ops.logs.LineHandler, room_bytes={ROOM_BYTES})
if "break" in sys.argv:
    def broken(*_):
        raise RuntimeError("SECRET of a bug")
    service.process.App = broken
sys.exit(service.process.run_server(load_settings({{"propagation_s": "0"}})))
"""


@contextmanager
def unread_server(listen: str, metrics: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The server's process, and the reading end of its standard error, a pipe of one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, *arguments],
        stderr=writing,
        env=environment(SOLOIST_LISTEN=listen, SOLOIST_METRICS_LISTEN=metrics),
    )
    os.close(writing)
    try:
        yield process, reading
    finally:
        process.kill()
        process.wait()
        os.close(reading)


async def take_turns(target: str, count: int) -> int:
    async with ChatClient(target) as chat:
        return [(await chat.ask("x")).text for _ in range(count)].count("the answer")


def figure(metrics: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as page:
        match = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
    assert match is not None
    return float(match[1])


def test_turns_go_on_while_nobody_reads_the_log_and_a_line_tells_what_was_lost(tmp_path: Path) -> None:
    listen, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    with unread_server(listen, metrics) as (process, reading):
        await_serving(listen, process, tmp_path)
        assert asyncio.run(take_turns(listen, TURNS)) == TURNS  # their lines are several times what has room
        dropped = figure(metrics, "soloist_log_records_dropped_total")
        assert dropped > 0

        lines = iter(os.fdopen(os.dup(reading), encoding="utf-8"))
        told = next(line for line in map(json.loads, lines) if "dropped" in line)
        assert (told["level"], told["dropped"]) == ("warning", dropped)
        process.send_signal(signal.SIGTERM)
        last = list(map(json.loads, lines))[-1]
        assert (last["message"], last["exit_code"]) == ("stopped", 0)
        assert process.wait(30) == 0


def test_a_server_whose_log_nobody_reads_leaves_when_told_to(tmp_path: Path) -> None:
    listen, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    with unread_server(listen, metrics) as (process, _):
        await_serving(listen, process, tmp_path)
        asyncio.run(take_turns(listen, TURNS))
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0


def test_the_last_words_of_a_server_that_breaks_come_out_without_what_an_error_quotes() -> None:
    with unread_server("127.0.0.1:0", "off", "break") as (process, reading):
        assert process.wait(60) == 1
        (line,) = [json.loads(line) for line in os.read(reading, 4096).decode().splitlines()]

    assert line["message"] == "the server broke"
    assert "RuntimeError" in line["traceback"]
    assert "SECRET" not in line["traceback"]
