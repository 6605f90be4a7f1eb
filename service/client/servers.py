"""The servers of one client: an address each, a channel each, and the next one to ask."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import grpc

from service.client.names import Name, host_and_port
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

    @property
    def failing(self) -> bool:
        """Whether it could not be reached when it was last tried."""
        return self.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

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
    """Every address of a client. The one asked last is asked again, until it fails a turn; sessions have their own."""

    def __init__(
        self,
        targets: str | Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        self._credentials = credentials
        self._options = (*_OPTIONS, *options)
        self._opened: WeakSet[grpc.aio.Channel] = WeakSet()
        self._all = [self._open(target) for target in addresses(targets)]
        self._names = [self._name(server.target) for server in self._all]
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

    async def route(self, session_id: str) -> Servers | Route:
        """Whom to ask for a turn: for one of a session, whoever has had its turns."""
        if not session_id:
            return self
        single: list[Server] = []
        several: list[Server] = []
        for server, name in zip(self._all, self._names, strict=True):
            behind = [] if name is None else await name.servers()
            if len(behind) > 1:
                single += behind
                several.append(server)
            else:
                single.append(server)
        return Route(self, [*_ranked(session_id, single), *several])

    async def close(self) -> None:
        """Close every channel."""
        self.closed = True
        await asyncio.gather(*(channel.close() for channel in self._opened))

    def _name(self, target: str) -> Name[Server] | None:
        found = host_and_port(target)
        return None if found is None else Name(*found, self._open)

    def _open(self, target: str, name: str | None = None) -> Server:
        """A channel to `target`, which goes by `name` where that is not the target's own."""
        options = list(self._options)
        if name is not None:
            port = target.rpartition(":")[2]
            options.append(("grpc.default_authority", f"{name}:{port}"))
            options += [] if self._credentials is None else [("grpc.ssl_target_name_override", name)]
        channel = (
            grpc.aio.insecure_channel(target, options=options)
            if self._credentials is None
            else grpc.aio.secure_channel(target, self._credentials, options=options)
        )
        self._opened.add(channel)
        return Server(target, channel, chat_pb2_grpc.ChatServiceStub(channel))


class Route:
    """The servers for one turn of a session, in the order in which it asks them: the same one for every client."""

    def __init__(self, servers: Servers, places: Sequence[Server]) -> None:
        self._servers = servers
        self._places = places
        self._asked = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def closed(self) -> bool:
        """Whether the client is."""
        return self._servers.closed

    @property
    def current(self) -> Server:
        """The server to ask."""
        return self._places[self._asked]

    def pass_on(self, failed: Server) -> None:
        """That one failed: ask the one after it."""
        if self.current is failed:
            self._asked = (self._asked + 1) % len(self._places)


def _ranked(session_id: str, servers: Sequence[Server]) -> list[Server]:
    """By rendezvous hashing: where a server comes or goes, the sessions of the others stay where they are."""

    def rank(server: Server) -> tuple[bool, bytes]:
        return server.failing, hashlib.sha256(f"{server.target} {session_id}".encode()).digest()

    return sorted(servers, key=rank)


def addresses(targets: str | Sequence[str]) -> list[str]:
    """Each address of `HOST:PORT,HOST:PORT` or of a list. ValueError where there is none."""
    if isinstance(targets, str):
        targets = [targets] if targets.startswith(_LISTS_OF_GRPC) else targets.split(",")
    found = list(dict.fromkeys(stripped for target in targets if (stripped := target.strip())))
    if not found:
        raise ValueError("a client needs the address of a server, HOST:PORT")
    return found
