"""The process around a server: an interpreter that is set for tokens once the model is there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from service import process
from service.app import EXIT_DRAINED
from tests.fakes import FakeEngine
from tests.service.running import quick, until
from tests.service.test_app import environment

STEADY = """
import gc, sys
from service.process import SWITCH_INTERVAL_S, steady_interpreter
steady_interpreter()
print(gc.get_freeze_count() > 10_000, gc.isenabled(), sys.getswitchinterval() == SWITCH_INTERVAL_S)
"""


def test_what_lives_is_collected_no_more_and_threads_change_places_soon() -> None:
    told = subprocess.run(
        [sys.executable, "-c", STEADY], capture_output=True, text=True, check=True, env=environment()
    ).stdout

    assert told.split() == ["True", "True", "True"]


async def test_a_server_steadies_its_interpreter_once_the_model_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, steadied = FakeEngine(), list[bool]()
    monkeypatch.setattr("service.app.engine_factory", lambda _: engine.opener())
    monkeypatch.setattr(process, "steady_interpreter", lambda: steadied.append(True))
    serving = asyncio.create_task(process._serve(quick()))
    await until(lambda: bool(steadied))
    os.kill(os.getpid(), signal.SIGTERM)

    assert await asyncio.wait_for(serving, 30) == EXIT_DRAINED
    assert len(steadied) == 1


BEFORE_ITS_SIGNALS = """
import os, signal, sys
import service.process
from service.__main__ import main
app = service.process.App

def interrupted(settings):
    os.kill(os.getpid(), signal.SIGINT)
    return app(settings)

service.process.App = interrupted
sys.exit(main(["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "off"]))
"""


def test_ctrl_c_before_a_server_has_its_signals_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_ITS_SIGNALS], capture_output=True, text=True, check=False, env=environment()
    )

    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["message"] == "interrupted before it had begun"
