"""Keys and certificates that change while a gateway runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.keys import hash_of, new_key
from tests.certificates import Authority
from tests.fakes import saying
from tests.running_server import free_ports
from tests.service.gateway.running import HELLO, Gateway, NotingEngine, gateway
from tests.service.running import in_flight, running, until


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.file_watch.LOOK_EVERY_S", 0.0)


async def test_its_own_key_is_the_one_that_the_file_holds_now(tmp_path: Path) -> None:
    keys, own = tmp_path / "keys.yaml", tmp_path / "own"

    def rotate() -> None:
        key = new_key()
        keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n", encoding="utf-8")
        own.write_text(key, encoding="ascii")

    rotate()
    async with (
        running(NotingEngine(answer=saying("Hi")), keys=str(keys)) as app,
        gateway(app.address, api_key_file=str(own)) as gate,
    ):
        assert (await gate.ask(HELLO)).status_code == 200
        rotate()
        assert (await gate.ask(HELLO)).status_code == 200
        own.write_text("", encoding="ascii")
        assert (await gate.ask(HELLO)).status_code == 200, "what cannot be used leaves the one before"


async def test_https_gives_new_connections_the_certificate_of_now_and_cuts_none(tmp_path: Path) -> None:
    old, new = Authority.make(tmp_path, "old"), Authority.make(tmp_path, "new")
    certificate, key = old.issue(tmp_path, "gateway", "127.0.0.1")
    async with (
        running() as app,
        gateway(app.address, https_cert=str(certificate), https_key=str(key)) as gate,
        browser(gate, old) as standing,
    ):
        assert (await standing.get("/healthz")).status_code == 200
        new.issue(tmp_path, "gateway", "127.0.0.1")
        async with browser(gate, new) as later:
            assert (await later.get("/healthz")).status_code == 200
        assert (await standing.get("/healthz")).status_code == 200
        async with browser(gate, old) as late:
            with pytest.raises(httpx.ConnectError):
                await late.get("/healthz")
        old.issue(tmp_path, "other", "127.0.0.1")[1].replace(key)
        async with browser(gate, new) as half:
            assert (await half.get("/healthz")).status_code == 200, "half a rotation leaves the one before"


async def test_servers_that_trust_another_signer_now_are_reached_and_answers_that_run_end_well(tmp_path: Path) -> None:
    old, new = Authority.make(tmp_path, "old"), Authority.make(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    server, server_key = tmp_path / "server.crt", tmp_path / "server.key"
    own, own_key = tmp_path / "own.crt", tmp_path / "own.key"
    signers = tmp_path / "signers.pem"

    def rotate(authority: Authority) -> None:
        authority.issue(tmp_path, "server", "127.0.0.1")
        authority.issue(tmp_path, "own", "gateway")
        for path in (trusted, signers):
            path.write_bytes(authority.ca.read_bytes())

    rotate(old)
    engine = NotingEngine(answer=saying("Hi"))
    served: dict[str, Any] = {"tls_cert": str(server), "tls_key": str(server_key), "tls_client_ca": str(signers)}
    files: dict[str, Any] = {"tls_ca": str(trusted), "tls_cert": str(own), "tls_key": str(own_key)}
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with gateway(address, **files) as gate:
        async with running(listen=address, **served):
            assert (await gate.ask(HELLO)).status_code == 200
        rotate(new)
        async with running(engine, listen=address, max_active_turns=2, **served) as app:
            assert (await gate.ask(HELLO)).status_code == 200
            engine.hold()
            running_on = asyncio.create_task(gate.ask(HELLO))
            await until(lambda: in_flight(app) == 1)
            rotate(old)
            later = asyncio.create_task(gate.ask(HELLO))
            await until(lambda: in_flight(app) == 2)
            own_key.write_text("half a rotation", encoding="ascii")
            assert (await gate.web.get("/v1/models")).status_code == 200
            engine.release()
            assert [(await task).status_code for task in (running_on, later)] == [200, 200]


def browser(gate: Gateway, authority: Authority) -> httpx.AsyncClient:
    """Trusts this authority."""
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    return httpx.AsyncClient(base_url=gate.url.replace("http:", "https:"), verify=trusting)
