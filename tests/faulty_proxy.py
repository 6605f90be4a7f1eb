"""An HTTP proxy before a server of objects that notes what is asked for, and breaks what a test wants broken."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["none", "refuse", "cut", "hold"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: the object's path, and its byte range as it was asked for."""

    method: str
    path: str
    range: str | None


@dataclass(slots=True)
class FaultyProxy:
    """A running proxy. `fault` decides over each request: let it pass, close the connection before the answer or in the
    middle of it, or hold it until the proxy ends.
    """

    url: str
    fault: Callable[[Asked], Fault] = lambda asked: "none"
    asked: list[Asked] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ranges(self, name: str) -> list[str]:
        """The ranges of an object that were asked for, in order of arrival."""
        with self.lock:
            return [a.range for a in self.asked if a.method == "GET" and a.path.endswith(name) and a.range is not None]


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Run a proxy before `upstream` on a free port of the loopback."""
    address = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

        def do_GET(self) -> None:
            asked = Asked(self.command, urlsplit(self.path).path, self.headers.get("Range"))
            with proxy.lock:
                proxy.asked.append(asked)
                fault = proxy.fault(asked)
            self.close_connection = True
            if fault == "refuse":
                return
            if fault == "hold":
                proxy.ended.wait(60)
                return
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"connection", "transfer-encoding", "server", "date", "content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

        do_HEAD = do_GET  # noqa: N815 - the name of the base class

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy = FaultyProxy(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            server.shutdown()
            thread.join()
