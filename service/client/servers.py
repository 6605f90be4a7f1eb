"""The servers of one client: an address each, a channel each, and the next one to ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from soloist.v1 import chat_pb2_grpc

KEEPALIVE_S = 20.0  # servers of this project accept a ping every 5 s

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A turn may wait in the queue for minutes without a byte: pings tell a dead path from a patient one. The server
    # permits them; without the second line the library would send two and then go quiet.
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # With several addresses behind a name, every one gets turns.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # While a channel backs off, calls fail without being tried: no longer than we wait between two attempts ourselves.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

_UNDECIDED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_LISTS_OF_GRPC = ("ipv4:", "ipv6:")  # its own spelling of several addresses behind one channel


@dataclass(frozen=True, slots=True)
class Server:
    """One address, or several behind one name."""

    target: str
    channel: grpc.aio.Channel
    stub: chat_pb2_grpc.ChatServiceAsyncStub

    async def connected(self, ends_s: float | None) -> None:
        """Until the connection stands or has failed. Streams begun before the server has told its limit may exceed it,
        and grpcio 1.85.3 leaves one of those without any end.
        """
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        with suppress(TimeoutError):  # the call itself says so, with gRPC's status
            async with asyncio.timeout(left_s):
                while (state := self.channel.get_state(try_to_connect=True)) in _UNDECIDED:
                    await self.channel.wait_for_state_change(state)


class Servers:
    """Every address of a client. The one asked last is asked again, until it fails a turn."""

    def __init__(
        self,
        targets: str | Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        every = [*_OPTIONS, *options]
        self._all = [_open(target, credentials, every) for target in addresses(targets)]
        self._asked = 0
        self.closed = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> Server:
        """The server to ask."""
        return self._all[self._asked]

    def pass_on(self, failed: Server) -> None:
        """That one failed: ask the one after it, unless somebody has passed on already."""
        if self.current is failed:
            self._asked = (self._asked + 1) % len(self._all)

    async def close(self) -> None:
        """Close every channel."""
        self.closed = True
        await asyncio.gather(*(server.channel.close() for server in self._all))


def addresses(targets: str | Sequence[str]) -> list[str]:
    """Each address of `HOST:PORT,HOST:PORT` or of a list. ValueError where there is none."""
    if isinstance(targets, str):
        targets = [targets] if targets.startswith(_LISTS_OF_GRPC) else targets.split(",")
    found = list(dict.fromkeys(stripped for target in targets if (stripped := target.strip())))
    if not found:
        raise ValueError("a client needs the address of a server, HOST:PORT")
    return found


def _open(target: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, Any]]) -> Server:
    channel = (
        grpc.aio.insecure_channel(target, options=options)
        if credentials is None
        else grpc.aio.secure_channel(target, credentials, options=options)
    )
    return Server(target, channel, chat_pb2_grpc.ChatServiceStub(channel))
