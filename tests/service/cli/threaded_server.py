"""A whole server on a fake engine, in a thread of its own, for tests whose client is another process."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self, cast

from service.app import App, EngineFactory
from service.settings import Settings
from tests.fakes import FakeEngine

READY_WITHIN_S = 60.0


class ThreadedServer:
    """Serves between `with` and its end. `target` is its HOST:PORT."""

    def __init__(self, engine: FakeEngine, **settings: Any) -> None:
        self.target = ""
        self._settings = Settings(listen="127.0.0.1:0", metrics_listen=None, **settings)
        self._engine = engine
        self._ready = threading.Event()
        self._app: App | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(READY_WITHIN_S), "the server did not become ready"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.release()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(READY_WITHIN_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def _stop(self) -> None:
        assert self._app is not None
        for _ in range(3):  # each signal ends a phase of the drain: what still plays is ended, not waited for
            self._app.signal()

    async def _serve(self) -> None:
        try:
            self._app = App(self._settings, cast("EngineFactory", self._engine.opener()))
            self._loop = asyncio.get_running_loop()
            await self._app.start()
            await self._app.ready()
            self.target = self._app.address
        except BaseException as failure:
            self._failure = failure
            raise
        finally:
            self._ready.set()
        await self._app.run()
