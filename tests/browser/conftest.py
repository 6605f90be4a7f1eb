"""A real Chromium, and gateways behind one address as a balancer has them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import absent

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Without the last three it asks for Google's hosts at every start.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser(require_tool: Callable[[str], str]) -> Iterator[Browser]:
    """Debian's Chromium, headless. Not for the whole run: while Playwright is open no other event loop can run here."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        absent("playwright is not installed")
    chromium = require_tool("chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab whose console stays empty, and which asks nobody but the gateway."""
    context = browser.new_context(viewport={"width": 1000, "height": 720})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    said: list[str] = []
    hosts: set[str] = set()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2].partition(":")[0]))
    yield opened
    context.close()
    # What a browser says by itself of a status or of a connection that was lost is no fault of the page.
    assert [line for line in said if "Failed to load resource" not in line] == []
    assert hosts <= {"127.0.0.1"}


class Balancer:
    """One address in front of several: each connection goes to the first that takes it. It knows nothing of HTTP."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                reader, _ = self._listener.accept()
            except OSError:
                return
            for port in self._ports:
                try:
                    gateway = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    continue
                for one, other in ((reader, gateway), (gateway, reader)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()
                break
            else:
                reader.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go."""
    folder = tmp_path / "shots"
    folder.mkdir()
    return folder
