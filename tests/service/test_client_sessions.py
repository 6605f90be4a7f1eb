"""A session's turns come back to the server that has its KV, whoever sends them and however the servers are named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.app import App
from service.client import ChatClient, Retries
from service.client.names import host_and_port
from tests.certificates import Authority
from tests.fakes import FakeEngine, saying
from tests.running_server import free_ports
from tests.service.running import running

SESSIONS = [f"session-{number}" for number in range(40)]
QUICK = Retries(first_wait_s=0.01, longest_wait_s=0.05)


@asynccontextmanager
async def servers(*listens: str, **changes: Any) -> AsyncIterator[list[App]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running(FakeEngine(answer=saying("Hi"), slots=len(SESSIONS)), listen=listen, **changes)
            )
            for listen in listens
        ]


async def cached(chat: ChatClient, session: str) -> bool:
    """Whether the server that answers knows this session."""
    return (await chat.ask("the same words", session_id=session)).started.cached_tokens > 0


def answered(app: App) -> float:
    return app.metrics.registry.get_sample_value("soloist_requests_total", {"reason": "stop"}) or 0


async def test_sessions_are_spread_and_every_client_finds_each_where_it_is() -> None:
    async with servers(*["127.0.0.1:0"] * 3) as apps:
        addresses = [app.address for app in apps]
        async with ChatClient(addresses) as one, ChatClient(addresses[::-1]) as other:
            assert not any([await cached(one, session) for session in SESSIONS])
            assert all([await cached(other, session) for session in SESSIONS])
            assert sum(answered(app) > 0 for app in apps) >= 2


async def test_where_a_server_goes_its_sessions_go_on_elsewhere_and_the_others_stay() -> None:
    async with servers("127.0.0.1:0", "127.0.0.1:0") as apps, AsyncExitStack() as stack:
        doomed = await stack.enter_async_context(running(FakeEngine(answer=saying("Hi"), slots=len(SESSIONS))))
        async with ChatClient([doomed.address, *(app.address for app in apps)], retries=QUICK) as chat:
            for session in SESSIONS:
                await cached(chat, session)
            its_own = answered(doomed)
            await stack.aclose()
            known = [await cached(chat, session) for session in SESSIONS]
            assert 0 < its_own == known.count(False)
            assert all([await cached(chat, session) for session in SESSIONS]), "they have their new place"


@pytest.mark.parametrize("tls", [False, True])
async def test_behind_a_name_each_address_has_its_sessions(
    *, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make(tmp_path, "ca")
    certificate, key = authority.issue(tmp_path, "server", "pods.test")
    files = {"tls_cert": str(certificate), "tls_key": str(key)} if tls else {}
    [port] = free_ports(1)
    known = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]

    async def addresses_of(host: str) -> list[str]:
        assert host == "pods.test"
        return known

    monkeypatch.setattr("service.client.names._addresses_of", addresses_of)
    monkeypatch.setattr("service.client.names.LOOK_EVERY_S", 0.0)
    async with servers(*(f"{address}:{port}" for address in known), **files) as apps:
        trusted = authority.trusted() if tls else None
        target = f"pods.test:{port}"
        async with ChatClient(target, tls=trusted) as one, ChatClient(target, tls=trusted) as other:
            assert not any([await cached(one, session) for session in SESSIONS])
            assert all([await cached(other, session) for session in SESSIONS])
            assert sum(answered(app) > 0 for app in apps) >= 2
            del known[0]
            moved = [await cached(one, session) for session in SESSIONS].count(False)
            assert 2 * moved == answered(apps[0])


def test_what_is_a_name() -> None:
    assert host_and_port("soloist.soloist.svc:50051") == ("soloist.soloist.svc", 50051)
    for target in ("127.0.0.1:1", "[::1]:1", "dns:///a:1", "ipv4:127.0.0.1:1,127.0.0.2:1", "unix:/a", "a"):
        assert host_and_port(target) is None
