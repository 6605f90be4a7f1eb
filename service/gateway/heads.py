"""Heads of requests that cannot be trusted: no HTTP, too much of it, or such as can be read in two ways."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.gateway.errors import ApiError
from service.gateway.guards import ALWAYS
from service.gateway.log import facts_of
from service.gateway.responses import error_response

HEAD_BYTES: Final = 32 * 1024  # line and headers
_UNANSWERED: Final = ("IDLE", "SEND_RESPONSE")  # states of ours in h11
_NOT_READABLE: Final = "the request cannot be read as HTTP/1.1, so the connection ends here"
_STATUSES: Final = {400: _NOT_READABLE, 501: "of transfer codings only `chunked` is served"}


class PlainProtocol(H11Protocol):
    """Answers what is no HTTP as it answers everything else, where uvicorn has a line of text."""

    def send_400_response(self, msg: str) -> None:
        """Called where a request's head or the framing of its body is wrong."""
        # A request that has its answer gets no second one: it would be taken for that of the next request.
        if str(self.conn.our_state) in _UNANSWERED:
            problem = _problem(getattr(sys.exception(), "error_status_hint", 400))
            body = problem.encoded()
            headers = [
                *self.server_state.default_headers,
                *((name.encode(), value.encode()) for name, value in ALWAYS.items()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            first = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}".encode()
            lines = [first, *(name + b": " + value for name, value in headers), b"", body]
            self.transport.write(b"\r\n".join(lines))
        self.transport.close()


class SoundHeads:
    """Refuses requests whose head is complete but too large, or does not say where the request ends; both end the
    connection, as nobody knows what follows.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        problem = _problem_of(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        facts_of(scope).failed(problem)
        await error_response(problem)(scope, receive, closing)


def _problem_of(headers: Headers) -> ApiError | None:
    if sum(len(name) + len(value) for name, value in headers.raw) > HEAD_BYTES:
        return _problem(431)
    if "transfer-encoding" in headers and "content-length" in headers:
        # Something between the caller and here may have believed the other one: that is how requests are smuggled.
        return ApiError(400, "send Content-Length or Transfer-Encoding, not both", code="malformed_request")
    return None


def _problem(status: int) -> ApiError:
    if status == 431:
        return ApiError(431, f"the head of a request may have {HEAD_BYTES} bytes at most", code="header_too_large")
    return ApiError(
        status if status in _STATUSES else 400, _STATUSES.get(status, _NOT_READABLE), code="malformed_request"
    )
