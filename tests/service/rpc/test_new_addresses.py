"""A server that comes later gets turns of clients that were there before: connections end, and names are asked anew."""

from __future__ import annotations

import asyncio

from service.client import ChatClient
from tests.fakes import FakeEngine, saying
from tests.service.rpc.name_server import name_server
from tests.service.running import HANGS_AFTER_S, running

AGE_S = 1.0
# The library's least time between two questions for one name is 30 s.
OPTIONS = [("grpc.dns_min_time_between_resolutions_ms", 100)]


async def test_rpc_06_a_new_address_of_the_name_gets_turns_once_connections_are_of_age() -> None:
    old, new = (FakeEngine(answer=saying("x")) for _ in range(2))
    async with (
        name_server("127.0.0.1") as (names, port),
        running(old, connection_age_s=AGE_S) as first,
        # As of pods, the addresses differ and the port does not.
        running(new, connection_age_s=AGE_S, listen=f"127.0.0.2:{_port(first.address)}"),
        ChatClient(f"dns://127.0.0.1:{port}/pods.example:{_port(first.address)}", options=OPTIONS) as chat,
    ):
        await chat.ask("of the only one")
        names.addresses.append("127.0.0.2")
        async with asyncio.timeout(HANGS_AFTER_S):
            while not new.prompts:
                await chat.ask("of whichever")
        assert old.prompts


def _port(address: str) -> str:
    return address.rpartition(":")[2]
