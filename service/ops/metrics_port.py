"""The HTTP port of the metrics, on threads of its own, so that figures come out whatever the event loop is at.

Few connections are served at once, each for a short time, and a new one takes the place of the oldest: a scrape takes
milliseconds, so who holds connections open cannot keep it away, nor use up threads and descriptors.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.ops.metrics import Metrics

MAX_CONNECTIONS = 16
REQUEST_S = 10.0  # for a whole request and its answer, however slowly it drips in
_LOOK_EVERY_S = 0.25

logger = logging.getLogger("soloist.metrics")


class MetricsAddressError(Exception):
    """The metrics port cannot be opened."""


class MetricsEndpoint:
    """The open port.

    Attributes:
        address: HOST:PORT as bound.
    """

    def __init__(self, server: _BoundedServer, host: str) -> None:
        self.address = f"{host}:{server.server_port}"
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(_LOOK_EVERY_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(
    metrics: Metrics, listen: str, max_connections: int = MAX_CONNECTIONS, request_s: float = REQUEST_S
) -> MetricsEndpoint:
    """Open the port. MetricsAddressError, in one line, if it cannot be had."""
    host, _, port = listen.rpartition(":")
    try:
        server = _BoundedServer((host.strip("[]"), int(port)), metrics.page(), max_connections, request_s)
    except OSError as error:
        raise MetricsAddressError(f"cannot listen on {listen} for metrics: {error.strerror or error}") from None
    return MetricsEndpoint(server, host)


class _BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, and a bound on connections and their time."""

    request_queue_size = 128  # connections that the system holds until they are taken; the usual 5 makes others wait

    def __init__(
        self, address: tuple[str, int], page: type[BaseHTTPRequestHandler], max_connections: int, request_s: float
    ) -> None:
        self._max_connections = max_connections
        self._request_s = request_s
        self._lock = threading.Lock()
        self._since_s: dict[socket.socket, float] = {}  # open connections, the oldest first
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(where[0]), int(where[1])), page)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A new connection: the oldest leaves for it where all places are taken."""
        with self._lock:
            if len(self._since_s) >= self._max_connections:
                self._cut(next(iter(self._since_s)))
            self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        with self._lock:
            self._since_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called between looks for connections: those that had their time leave."""
        with self._lock:
            late_s = time.monotonic() - self._request_s
            for connection in [one for one, since_s in self._since_s.items() if since_s < late_s]:
                self._cut(connection)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in list(self._since_s):
                self._cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's matter."""
        logger.debug("a metrics connection broke", exc_info=True)

    def _cut(self, connection: socket.socket) -> None:
        """Its thread wakes with an end of file or an error, and closes it. The lock is held."""
        del self._since_s[connection]
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was quicker
