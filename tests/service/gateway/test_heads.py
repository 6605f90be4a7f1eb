"""Requests whose head is no HTTP, or too much of it, or can be read in two ways."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.service.gateway.running import CHAT, Gateway, gateway
from tests.service.running import running

HOST = b"Host: localhost\r\n"
POST = f"POST {CHAT} HTTP/1.1\r\n".encode() + HOST + b"Content-Type: application/json\r\n"
FLOOD = b"".join(b"X%d: y\r\n" % number for number in range(10_000))


async def said(gate: Gateway, *pieces: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """All responses on one connection, until the gateway ends it."""
    host, _, port = gate.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    told = await asyncio.wait_for(reader.read(), 10.0)
    writer.close()
    found = []
    while told:
        head, _, rest = told.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers["content-length"])
        found.append((int(first.split()[1]), headers, rest[:length]))
        told = rest[length:]
    return found


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02garbage\r\n\r\n", 400, "malformed_request"),
        (b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, "malformed_request"),
        (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n", 400, "malformed_request"),
        (POST + b"Content-Length: -4\r\n\r\n", 400, "malformed_request"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", 400, "malformed_request"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "malformed_request"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 40_000, 431, "header_too_large"),
        (b"GET / HTTP/1.1\r\n" + HOST + FLOOD + b"\r\n", 431, "header_too_large"),
    ],
)
async def test_they_are_refused_as_everything_else_is(sent: bytes, status: int, code: str) -> None:
    async with running() as app, gateway(app.address) as gate:
        [(told, headers, body)] = await said(gate, sent)
    assert told == status
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert headers["content-type"] == "application/json"
    assert (headers["x-content-type-options"], headers["connection"]) == ("nosniff", "close")


async def test_two_ends_of_one_body_are_none() -> None:
    """Whoever believed Content-Length takes the second request for a part of the first one's body."""
    smuggled = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    async with running() as app, gateway(app.address) as gate:
        for path in (CHAT, "/healthz"):
            head = f"POST {path} HTTP/1.1\r\n".encode() + HOST + b"Content-Type: application/json\r\n"
            both = b"Content-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            [(status, headers, body)] = await said(gate, head + both + smuggled)
            assert (status, headers["connection"]) == (400, "close")
            assert "not both" in json.loads(body)["error"]["message"]


async def test_what_is_wrong_after_the_answer_gets_no_second_one() -> None:
    async with running() as app, gateway(app.address) as gate:
        head = f"POST {CHAT} HTTP/1.1\r\n".encode() + HOST + b"Content-Type: text/plain\r\n"
        host, _, port = gate.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        first = await asyncio.wait_for(reader.readuntil(b"}}"), 10.0)
        writer.write(b"zz\r\n")
        assert first.startswith(b"HTTP/1.1 415")
        assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()


@pytest.mark.parametrize("length", [8 * 1024, 15_000, 31_000])
async def test_a_key_that_is_too_long_is_refused_by_its_name_before_the_body(length: int) -> None:
    key = "Bearer " + "k" * length
    async with running() as app, gateway(app.address) as gate:
        models = await gate.web.get("/v1/models", headers={"authorization": key})
        host, _, port = gate.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 100"]
        writer.write("\r\n".join([*lines, f"Authorization: {key}", "", "{"]).encode())
        told = await asyncio.wait_for(reader.readuntil(b"}}"), 10.0)
        writer.close()
    assert models.status_code == 431
    assert models.json()["error"]["param"] == "Authorization"
    assert told.startswith(b"HTTP/1.1 431")
    assert b'"Authorization"' in told
