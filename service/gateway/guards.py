"""What every response says to browsers, and which host names are ours."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.gateway.errors import ApiError
from service.setting_rules import is_loopback

ALWAYS: Final = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


class SafeHeaders:
    """Headers that no response of ours does without."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, adding)


class KnownHosts:
    """Refuses requests for other hosts: a page elsewhere may have its own name point to this machine.

    Probes are let through, as they ask for the address of a pod.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], open_paths: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hosts and scope["path"] not in self._open_paths:
            host = host_of(Headers(scope=scope).get("host", ""))
            if host not in self._hosts:
                raise ApiError(
                    403,
                    "this gateway does not answer to the host name of this request; its operator can add it to --hosts",
                    kind="permission_error",
                    code="host_not_allowed",
                )
        await self._app(scope, receive, send)


def host_of(header: str) -> str:
    """`Host` without its port, in lower case."""
    host, colon, port = header.strip().lower().rpartition(":")
    return host if colon and (port.isdigit() or not port) else header.strip().lower()


def hosts_of(listen: str, given: Collection[str]) -> tuple[str, ...]:
    """The names to answer to: those given, else on the loopback its own; empty is any."""
    if given:
        return tuple(given)
    return ("localhost", "127.0.0.1", "[::1]", host_of(listen)) if is_loopback(listen) else ()
