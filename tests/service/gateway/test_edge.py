"""What stands around the answers: bounds, headers, host names, other origins, paths that are not there."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.datastructures import Headers

from service.client import (
    BadRequestError,
    BrokenStreamError,
    ChatError,
    ClosedError,
    DeadlineError,
    OverloadedError,
    ResumeRefusedError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
)
from service.gateway.errors import TABLE, api_error_of
from service.gateway.guards import hosts_of
from service.gateway.reading import trace_of
from service.gateway.serving import open_backend
from service.gateway.settings import GatewaySettings
from tests.certificates import Authority
from tests.fakes import endless, saying
from tests.running_server import free_ports
from tests.service.gateway.running import CHAT, HELLO, NotingEngine, gateway, read
from tests.service.running import in_flight, running, until

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequestError("x", CODE.INVALID_ARGUMENT, "INVALID_FIELD"), 400, "invalid_value"),
        (BadRequestError("x", CODE.INVALID_ARGUMENT, "CONTEXT_LENGTH"), 400, "context_length_exceeded"),
        (BadRequestError("x", CODE.INVALID_ARGUMENT, "CHAT_TEMPLATE"), 400, "chat_template"),
        (UnauthenticatedError("x", CODE.UNAUTHENTICATED, "UNAUTHENTICATED"), 401, "invalid_api_key"),
        (ServerError("x", CODE.PERMISSION_DENIED), 403, "permission_denied"),
        (ServerError("x", CODE.NOT_FOUND), 404, "not_found"),
        (ServerError("x", CODE.ABORTED, "SESSION_BUSY"), 409, "session_busy"),
        (ResumeRefusedError("x", CODE.FAILED_PRECONDITION, "OTHER_NUMERICS"), 409, "other_numerics"),
        (OverloadedError("x", CODE.RESOURCE_EXHAUSTED), 413, "request_too_large"),
        (OverloadedError("x", CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", 2.5), 429, "queue_full"),
        (OverloadedError("x", CODE.RESOURCE_EXHAUSTED, "CALLER_LIMIT", "", 0.1), 429, "caller_limit"),
        (ServerError("x", CODE.INTERNAL, "INTERNAL"), 500, "internal_error"),
        (ServerError("x", CODE.UNIMPLEMENTED, "UNKNOWN_METHOD"), 501, "unknown_method"),
        (BrokenStreamError(), 502, "broken_stream"),
        (UnavailableError("10.0.0.7:50051 refused", CODE.UNAVAILABLE), 503, "unavailable"),
        (UnavailableError("x", CODE.UNAVAILABLE, "DRAINING"), 503, "draining"),
        (ClosedError(), 503, "draining"),
        (DeadlineError("x", CODE.DEADLINE_EXCEEDED, "DEADLINE"), 504, "deadline_exceeded"),
    ],
)
def test_every_error_has_its_status_and_a_stable_word(error: ChatError, status: int, code: str) -> None:
    problem = api_error_of(error)
    assert (problem.status, problem.code) == (status, code)
    assert problem.body()["error"].keys() == {"message", "type", "param", "code"}
    assert ("retry-after" in problem.headers()) == (status in (429, 503))
    assert "10.0.0.7" not in problem.message


def test_every_type_of_the_clients_errors_is_in_the_table() -> None:
    assert {row.error for row in TABLE} == set(ChatError.__subclasses__())


async def test_requests_that_are_too_large_too_slow_or_of_another_type() -> None:
    async with running() as app, gateway(app.address, max_body_bytes=2000, read_timeout_s=0.2) as gate:

        async def pieces() -> Any:
            for _ in range(30):
                yield b"x" * 100

        async def dawdling() -> Any:
            yield b"{"
            await asyncio.sleep(1.0)

        json_type = {"content-type": "application/json"}
        large = {"messages": [{"role": "user", "content": "x" * 2000}]}
        found = [
            await gate.web.post(CHAT, json=large),
            await gate.web.post(CHAT, content=pieces(), headers=json_type),
            await gate.web.post(CHAT, content=dawdling(), headers=json_type),
            await gate.web.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
            await gate.web.post(CHAT, content=b"{", headers=json_type),
            await gate.web.get(CHAT),
            await gate.web.get("/v1/embeddings"),
            await gate.web.get("/v1/models/"),
        ]
    assert [answer.status_code for answer in found] == [413, 413, 408, 415, 400, 405, 404, 404]
    assert all(answer.json()["error"]["code"] for answer in found)


async def test_heads_that_do_not_come_end_their_connection_after_the_time_of_their_own_server() -> None:
    async with running() as app, gateway(app.address, read_timeout_s=0.2) as gate, gateway(app.address):
        host, _, port = gate.url.removeprefix("http://").partition(":")
        for said in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection((host, int(port))) as slow:
                slow.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(slow, said)
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 1), 5.0) == b""


async def test_so_many_answers_at_once_and_no_more() -> None:
    engine = NotingEngine(answer=endless)
    async with running(engine) as app, gateway(app.address, max_turns=1) as gate:
        engine.hold()
        reading = asyncio.create_task(read(gate.web, HELLO))
        await until(lambda: in_flight(app) == 1)
        refused = await gate.ask(HELLO)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_full")
        assert refused.headers["retry-after"] == "1"
        assert (await gate.web.get("/healthz")).status_code == 200
        reading.cancel()
        await until(lambda: gate.backend.turns == 0)
        engine.release()


async def test_bodies_that_come_slowly_keep_nobody_out() -> None:
    host_line = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    engine = NotingEngine(answer=saying("Hi"))
    async with running(engine) as app, gateway(app.address, max_turns=2) as gate, AsyncExitStack() as strangers:
        host, _, port = gate.url.removeprefix("http://").partition(":")
        slow = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            strangers.callback(writer.close)
            writer.write(host_line.encode() + b"{")
            await writer.drain()
            slow.append(reader)
        assert (await asyncio.wait_for(slow[0].readline(), 10.0)).split()[1] == b"408", "the first one has had its time"
        answers = await asyncio.gather(*(gate.ask(HELLO) for _ in range(2)))
        assert [answer.status_code for answer in answers] == [200, 200]


async def test_without_a_server_it_is_not_ready_and_says_when_to_ask_again() -> None:
    async with gateway(f"127.0.0.1:{free_ports(1)[0]}") as gate:
        assert (await gate.web.get("/readyz")).status_code == 503
        refused = await gate.ask(HELLO)
    error = refused.json()["error"]
    assert (refused.status_code, refused.headers["retry-after"], error["type"]) == (503, "2", "server_error")
    assert error["message"] == "no server of the model can be reached; ask again"


async def test_it_stays_ready_when_its_servers_go() -> None:
    async with gateway(f"127.0.0.1:{free_ports(1)[0]}") as gate:
        async with running() as app:
            gate.backend.connections = (await _to(app.address)).connections
            assert (await gate.web.get("/readyz")).text == "ready\n"
        assert (await gate.web.get("/readyz")).text == "ready\n"


async def test_a_deadline_cuts_an_answer_or_comes_before_it() -> None:
    engine = NotingEngine(answer=endless, context=1 << 20)
    async with running(engine) as app, gateway(app.address, deadline_s=0.5) as gate:
        cut = (await gate.ask(HELLO)).json()
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["soloist"]["finish_reason"] == "deadline"
        engine.hold()
        late = await gate.ask(HELLO)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_hosts_that_are_not_ours_are_refused_where_a_name_could_be_made_to_point_here() -> None:
    async with running() as app, gateway(app.address) as gate:
        statuses = {
            host: (await gate.web.get("/", headers={"host": host})).status_code
            for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "evil.example", "")
        }
        assert (await gate.web.get("/healthz", headers={"host": "10.0.0.3:8080"})).status_code == 200
    assert statuses == {
        "localhost": 200, "localhost:8080": 200, "127.0.0.1:1": 200, "[::1]:8080": 200, "evil.example": 403, "": 403,
    }  # fmt: skip
    assert hosts_of("0.0.0.0:8080", ()) == ()
    assert hosts_of("0.0.0.0:8080", ("chat.example.org",)) == ("chat.example.org",)


async def test_other_origins_may_call_only_where_they_are_named() -> None:
    asking = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    async with running() as app:
        async with gateway(app.address) as gate:
            closed = await gate.web.options(CHAT, headers=asking)
        async with gateway(app.address, cors_origins=("https://app.example",)) as gate:
            open_to = await gate.web.options(CHAT, headers=asking)
            other = await gate.web.options(CHAT, headers={**asking, "origin": "https://evil.example"})
            answer = await gate.ask(HELLO, origin="https://app.example")
            refused = await gate.ask({}, origin="https://app.example")
    assert "access-control-allow-origin" not in {*closed.headers, *other.headers}
    assert open_to.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, "https://app.example")


async def test_the_page_comes_with_a_policy_and_can_be_left_out() -> None:
    async with running() as app:
        async with gateway(app.address) as gate:
            page = await gate.web.get("/")
            parts = [await gate.web.get(path) for path in ("/page.js", "/stream.js", "/page.css", "/icon.svg")]
        async with gateway(app.address, page=False) as gate:
            assert (await gate.web.get("/")).status_code == 404
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in page.text.replace("/v1/", "")
    assert [part.status_code for part in parts] == [200] * 4
    assert {part.headers["x-content-type-options"] for part in (page, *parts)} == {"nosniff"}
    assert "innerHTML" not in parts[0].text


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "ca")
    certificate, key = authority.issue(tmp_path, "server", "localhost", "127.0.0.1")
    files = {"tls_cert": str(certificate), "tls_key": str(key), "tls_client_ca": str(authority.ca)}
    mine, my_key = authority.issue(tmp_path, "gateway", "gateway")
    own: dict[str, Any] = {"tls_ca": str(authority.ca), "tls_cert": str(mine), "tls_key": str(my_key)}
    https: dict[str, Any] = {"https_cert": str(certificate), "https_key": str(key)}
    async with running(NotingEngine(answer=saying("Hi")), **files) as app:
        async with gateway(app.address, **own, **https) as gate:
            trusting = ssl.create_default_context(cafile=str(authority.ca))
            async with httpx.AsyncClient(verify=trusting) as web:
                answer = await web.post(gate.url.replace("http:", "https:") + CHAT, json=HELLO)
        assert answer.json()["choices"][0]["message"]["content"] == "Hi"
        async with gateway(app.address, tls_ca=str(authority.ca)) as gate:
            assert (await gate.ask(HELLO)).status_code == 503, "this server asks who the gateway is"


async def test_the_callers_trace_goes_on() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_of(Headers({"traceparent": trace})) == (("traceparent", trace),)
    assert trace_of(Headers({"traceparent": "x\n"})) == ()


async def _to(address: str) -> Any:
    return open_backend(GatewaySettings(target=address))
