"""The gateway as a process: its port, its signals, and a protocol that waits for nobody."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from service.client import ChatClient, ChatError, Retries, Tls
from service.gateway.answering import Backend
from service.gateway.app import build_app
from service.gateway.connections import Connections
from service.gateway.heads import HEAD_BYTES, PlainProtocol
from service.gateway.leaving import Leaving
from service.gateway.reading import Bodies
from service.gateway.rotated import Https, OwnKey, UnusableFileError
from service.gateway.served import ServedModel
from service.gateway.settings import GatewaySettings

logger = logging.getLogger("soloist.gateway")

_LAST_WORDS_S: Final = 5.0  # for answers whose time is over, and for what is on its way
_LONGEST_QUEUE: Final = 512  # of connections that the system has taken and we have not


class CannotStartError(Exception):
    """A file, an address or a port cannot be used. One line."""


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until told to leave. Returns the exit code.

    SIGTERM leaves in order. SIGINT (Ctrl-C) skips the time for balancers. Each further signal skips a phase.

    Raises:
        CannotStartError: before anything was served.
    """
    return asyncio.run(_serve(settings))


async def _serve(settings: GatewaySettings) -> int:
    backend = open_backend(settings)
    server = GatewayServer(backend)
    try:
        with _port(settings.listen) as port:
            url = f"{'https' if settings.https_cert else 'http'}://{_address(port)}"
            logger.info("serving", extra={"fields": {"url": url, "target": settings.target}})
            await server.serve(sockets=[port])
    finally:
        await backend.connections.close()
    logger.info("left")
    return 0


def open_backend(settings: GatewaySettings) -> Backend:
    """Connections to the servers, which are made when they are needed."""
    files = tuple(Path(name) if name else None for name in (settings.tls_ca, settings.tls_cert, settings.tls_key))

    def connect() -> ChatClient:
        tls = Tls(*files) if settings.speaks_tls else None
        # A full server's wait is told to the caller, who can decide better.
        return ChatClient(settings.target, tls=tls, retries=Retries(patience_s=0.0))

    try:
        own_key = OwnKey(settings.api_key_file)
        connections = Connections(connect, [path for path in files if path is not None])
    except (ChatError, ValueError, UnusableFileError) as error:
        raise CannotStartError(str(error)) from None
    return Backend(
        settings,
        connections,
        ServedModel(settings.model_names),
        Leaving(),
        own_key,
        Bodies(settings.max_turns),  # no turns yet, and as much memory
    )


class GatewayServer(uvicorn.Server):
    """Leaves in phases: announced, no new requests, no answers."""

    def __init__(self, backend: Backend) -> None:
        settings = backend.settings
        config = uvicorn.Config(
            build_app(backend),
            http=punctual(settings.read_timeout_s),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(settings.keep_alive_s)),
            timeout_graceful_shutdown=round(settings.grace_s + _LAST_WORDS_S),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        config.load()
        config.ssl = _https(settings)
        super().__init__(config)
        self._backend = backend
        self._timers: list[asyncio.TimerHandle] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In the loop, and without raising them again afterwards: who left in order exits with 0."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.leave, self._backend.settings.propagation_s)
        loop.add_signal_handler(signal.SIGINT, self.leave, 0.0)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)
            for timer in self._timers:
                timer.cancel()

    def leave(self, propagation_s: float) -> None:
        """The next phase now, and those after it in their time."""
        leaving = self._backend.leaving
        if self.should_exit:
            leaving.end_answers()
        elif leaving.announced or propagation_s <= 0:
            leaving.announce()
            self._refuse()
        else:
            logger.info("leaving", extra={"fields": {"propagation_s": propagation_s}})
            leaving.announce()
            self._later(propagation_s, self._refuse)

    def _refuse(self) -> None:
        if not self.should_exit:
            grace_s = self._backend.settings.grace_s
            logger.info("refusing new requests", extra={"fields": {"answers": self._backend.turns, "grace_s": grace_s}})
            self.should_exit = True
            self._later(grace_s, self._backend.leaving.end_answers)

    def _later(self, seconds: float, what: Any) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, what))


class PunctualProtocol(PlainProtocol):
    """Closes a connection whose request line and headers do not come in time: uvicorn bounds only the idle ones."""

    head_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None:
            self._await_head()
        super().data_received(data)
        if self._answering:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if not self._answering:
            self._head_timer = self.loop.call_later(self.head_s, self._late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self._answering and not self.transport.is_closing():
            self.transport.close()


def punctual(head_s: float) -> type[PunctualProtocol]:
    """The protocol of one server. uvicorn makes its connections itself, so what it needs is of the class."""
    return type("PunctualProtocol", (PunctualProtocol,), {"head_s": head_s})


def _https(settings: GatewaySettings) -> ssl.SSLContext | None:
    if settings.https_cert is None or settings.https_key is None:
        return None
    try:
        return Https(settings.https_cert, settings.https_key).context()
    except UnusableFileError as error:
        raise CannotStartError(str(error)) from None


@contextmanager
def _port(listen: str) -> Iterator[socket.socket]:
    host, _, port = listen.rpartition(":")
    try:
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        taken = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_LONGEST_QUEUE)
    except OSError as error:
        raise CannotStartError(f"--listen {listen}: {error.strerror or error}") from None
    with taken:
        yield taken


def _address(port: socket.socket) -> str:
    host, number = port.getsockname()[:2]
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
