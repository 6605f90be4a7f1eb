"""What comes from the reader's side of a connection: a request's body, a key, and that nobody is there any more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from service.gateway.errors import ApiError, wrong

SESSION_HEADER: Final = "X-Session-Id"
_BEARER: Final = "bearer "
_LONGEST_KEY: Final = 8 * 1024  # servers take 16 KiB of all headers together
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class LeftError(Exception):
    """The client closed its connection."""


class Bodies:
    """The bodies that are on their way, so many at once. One more, and the one that has taken longest is given up: who
    sends slowly, with or without a key, keeps nobody else out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._coming: dict[asyncio.Timeout, None] = {}  # in their order

    @asynccontextmanager
    async def one_more(self, timeout_s: float) -> AsyncIterator[None]:
        """While a body comes. ApiError where it takes too long."""
        given_up = False
        try:
            async with asyncio.timeout(timeout_s) as limit:
                if len(self._coming) >= self._most:
                    slowest = next(iter(self._coming))
                    del self._coming[slowest]
                    if not slowest.expired():  # and is about to leave by itself
                        slowest.reschedule(asyncio.get_running_loop().time())
                self._coming[limit] = None
                try:
                    yield
                finally:
                    given_up = limit not in self._coming
                    self._coming.pop(limit, None)
        except TimeoutError:
            late = f"within {timeout_s:g} s"
            if given_up:
                late = "when others waited; send it at once"
            raise ApiError(408, f"the body was not there {late}", code="request_timeout") from None


async def read_body(request: Request, bodies: Bodies, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body of a JSON request. ApiError for one that is too large, too slow or of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Pages elsewhere can send anything else without asking first.
        raise ApiError(415, "send `Content-Type: application/json`", code="unsupported_media_type")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with bodies.one_more(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except ClientDisconnect:
        raise LeftError from None
    return bytes(body)


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` for a client whose request has been read; LeftError, and `work` is cancelled, when it leaves."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_left(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        left = not working.done()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.wait({working, watching})
    if left and working.cancelled():
        raise LeftError
    working.result()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def caller_key(headers: Headers, own: str | None) -> str | None:
    """The key that the caller sent, else the gateway's own. ApiError for a header that carries none, or too much."""
    given = headers.get("authorization")
    if given is None:
        return own
    if len(given) > _LONGEST_KEY:
        raise ApiError(
            431,
            f"the header Authorization may have {_LONGEST_KEY} characters at most",
            code="header_too_large",
            param="Authorization",
        )
    key = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""
    if not key or not key.isascii() or not key.isprintable():
        raise ApiError(
            401,
            "the header Authorization must be `Bearer KEY`",
            kind="authentication_error",
            code="invalid_api_key",
        )
    return key


def session_of(headers: Headers, in_body: str | None) -> str | None:
    """The session that header or body name."""
    in_header = headers.get(SESSION_HEADER)
    if in_header is not None and in_body is not None and in_header != in_body:
        raise wrong("session_id", f"differs from the header {SESSION_HEADER}; send one of them")
    return in_header if in_body is None else in_body


def trace_of(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The caller's `traceparent`, as metadata for the server; none where it is malformed."""
    given = headers.get("traceparent", "")
    return (("traceparent", given),) if _TRACEPARENT.fullmatch(given) else ()


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body may have {max_bytes} bytes at most", code="request_too_large")
