"""A real server on a fake engine, in a thread of its own: commands under test are processes that connect to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine
from tests.service.cli.threaded_server import ThreadedServer


@pytest.fixture
def engine() -> FakeEngine:
    """The engine behind `server`."""
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[ThreadedServer]:
    """Serving on a free port of the loopback."""
    with ThreadedServer(engine) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a command sees: this process's environment, a state directory of its own, and a plain UTF-8 terminal."""
    chosen = {"XDG_STATE_HOME": str(tmp_path / "state"), "LC_ALL": "C.UTF-8", "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **chosen}
