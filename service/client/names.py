"""A name with several servers behind it, such as Kubernetes' for a headless Service: each by its own address.

gRPC spreads the calls of a name itself, and cannot be told to bring a session's back to the server of the last one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from typing import Final, Generic, TypeVar

LOOK_EVERY_S = 10.0
_LOOK_WITHIN_S: Final = 2.0
_HOST_PORT: Final = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,5})")  # no scheme of gRPC's, no literal of IPv6

_Server = TypeVar("_Server")


class Name(Generic[_Server]):
    """Opens what is behind one name, and forgets what is there no more."""

    def __init__(self, host: str, port: int, open_at: Callable[[str, str], _Server]) -> None:
        """`open_at` takes HOST:PORT of an address, and the host's name that its certificate must have."""
        self._host = host
        self._port = port
        self._open_at = open_at
        self._found: dict[str, _Server] = {}
        self._looking = asyncio.Lock()
        self._fresh_until_s = 0.0

    async def servers(self) -> list[_Server]:
        """One for each address. None where the name is not known: gRPC says so, and tries again."""
        now_s = asyncio.get_running_loop().time
        async with self._looking:
            if now_s() >= self._fresh_until_s:
                await self._look()
                self._fresh_until_s = now_s() + LOOK_EVERY_S
        return list(self._found.values())

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_WITHIN_S):
                addresses = await _addresses_of(self._host)
        except (OSError, UnicodeError, TimeoutError):
            return  # with those of before, if any
        hosts = [f"[{address}]" if ":" in address else address for address in addresses]
        targets = [f"{host}:{self._port}" for host in hosts]
        # A connection that is forgotten closes itself when the last turn over it has ended.
        self._found = {target: self._found.get(target) or self._open_at(target, self._host) for target in targets}


def host_and_port(target: str) -> tuple[str, int] | None:
    """Of HOST:PORT, where the host is a name."""
    match = _HOST_PORT.fullmatch(target)
    if match is None:
        return None
    try:
        ipaddress.ip_address(match[1])
    except ValueError:
        return match[1], int(match[2])
    return None


async def _addresses_of(host: str) -> list[str]:
    """Of one family: servers with addresses of both are no more servers for that."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family = min((entry[0] for entry in found), key=lambda family: family is not socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found if entry[0] is family))
