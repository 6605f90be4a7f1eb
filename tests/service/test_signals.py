"""Signals to a server's process: while it loads, while it plays, once and twice."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.app import EXIT_DRAINED
from service.client import ChatClient, ChatError, Delta, Finished, Retries
from tests.contention import contention
from tests.service.test_app import environment, line_with, serving

LOADING = """
import sys, time
import service.app
import service.process
from service.settings import load_settings
service.app.engine_factory = lambda config: lambda listener: time.sleep(600)  # no event for ten minutes
sys.exit(service.process.run_server(load_settings()))
"""


def ready(process: subprocess.Popen[str]) -> str:
    return str(line_with(process, lambda line: line["message"] == "ready")["grpc"])


def enters(process: subprocess.Popen[str], phase: str) -> None:
    """Waits until the server's drain is in that phase."""
    line_with(process, lambda line: line.get("phase") == phase)


@contextmanager
def loading(stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """A server that has begun a load which says nothing; with all waits of a drain as they are by default."""
    given = environment(SOLOIST_LISTEN="127.0.0.1:0", SOLOIST_METRICS_LISTEN="off")
    process = subprocess.Popen([sys.executable, "-c", LOADING], stderr=stderr, text=True, env=given)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)])
def test_promise_04_a_load_that_says_nothing_holds_no_signal_up(signals: tuple[signal.Signals, ...]) -> None:
    with loading() as process:
        line_with(process, lambda line: line["message"].startswith("listening"))
        signalled_s = time.monotonic()
        for number in signals:
            process.send_signal(number)

        assert process.wait(60) == EXIT_DRAINED
        assert time.monotonic() - signalled_s <= 2.0 * contention()


def test_a_hangup_is_no_end_where_no_terminal_reads_the_log() -> None:
    with serving() as process:
        address = ready(process)
        process.send_signal(signal.SIGHUP)
        line_with(process, lambda line: line["message"].startswith("SIGHUP"))

        assert asyncio.run(said(address, tokens=3)) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == EXIT_DRAINED


def test_a_terminal_that_closes_ends_the_server_in_it() -> None:
    ours, theirs = pty.openpty()
    with loading(theirs) as process:
        os.close(theirs)
        shown = b""
        while b"listening" not in shown:
            shown += os.read(ours, 1024)
        os.close(ours)  # its lines go nowhere from now on
        process.send_signal(signal.SIGHUP)

        assert process.wait(60) == EXIT_DRAINED


def test_a_second_ctrl_c_ends_the_answers_that_play() -> None:
    with serving(SOLOIST_GRACE_S="600") as process:
        assert asyncio.run(interrupted(ready(process), process)) == "draining"
        assert process.wait(60) == EXIT_DRAINED


async def said(address: str, tokens: int) -> int:
    async with ChatClient(address, retries=Retries(attempts=1)) as chat:
        return (await chat.ask("x", max_tokens=tokens)).finished.completion_tokens


async def interrupted(address: str, process: subprocess.Popen[str]) -> str:
    """Ctrl-C at the first word, and again once the server drains."""
    async with ChatClient(address, retries=Retries(attempts=1)) as chat:
        events: Any = chat.stream("x")
        signals = 0
        try:
            async for event in events:
                if isinstance(event, Delta) and signals < 2:
                    process.send_signal(signal.SIGINT)
                    signals += 1
                    await asyncio.to_thread(enters, process, "finishing" if signals == 1 else "ending")
                elif isinstance(event, Finished):
                    return event.reason
        except ChatError as error:
            return str(error)
    return "no end"
