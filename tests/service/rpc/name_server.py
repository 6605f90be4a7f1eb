"""A name server of one name, whose addresses a test may change: what a headless Service is to a client."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

_HEAD_BYTES = 12
_A, _INTERNET = 1, 1
_ANSWERED = 0x8180  # a response without error, of a server that asks others where it must
_THE_NAME_ASKED_FOR = b"\xc0\x0c"


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for addresses with `addresses`, and all others with none."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = _HEAD_BYTES
        while data[end]:
            end += data[end] + 1
        (kind,) = struct.unpack_from(">H", data, end + 1)
        answers = [
            _THE_NAME_ASKED_FOR + struct.pack(">HHIH", _A, _INTERNET, 1, 4) + socket.inet_aton(address)
            for address in self.addresses
            if kind == _A
        ]
        head = data[:2] + struct.pack(">HHHHH", _ANSWERED, 1, len(answers), 0, 0)
        assert self._transport is not None
        self._transport.sendto(head + data[_HEAD_BYTES : end + 5] + b"".join(answers), addr)


@asynccontextmanager
async def name_server(*addresses: str) -> AsyncIterator[tuple[NameServer, int]]:
    """(a running one, its port)."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: NameServer(addresses), local_addr=("127.0.0.1", 0)
    )
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
