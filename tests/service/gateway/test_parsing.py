"""Large bodies: whom they may cost, and that they keep nobody else waiting."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from service.gateway import parsing
from service.gateway.fields import read_json
from service.keys import hash_of, new_key
from tests.contention import in_time
from tests.fakes import saying
from tests.service.gateway.running import CHAT, HELLO, Gateway, NotingEngine, gateway
from tests.service.running import running

JSON = {"content-type": "application/json"}
LARGE = parsing.LARGE_BYTES + 1


def padded() -> bytes:
    """A request that is large by a field without an effect."""
    body = json.dumps({**HELLO, "user": ""})
    return body.replace('"user": ""', f'"user": "{"x" * (LARGE - len(body))}"').encode()


def filled(before: str, value: str, after: str) -> bytes:
    """A body of almost 4 MiB."""
    values = ",".join([value] * ((4_100_000 - len(before)) // (len(value) + 1)))
    return (before + values + after).encode()


MANY = {
    "ids": filled('{"messages":[{"role":"user","content":"a"}],"stop_token_ids":[', "1", "]}"),
    "messages": filled('{"messages":[', '{"role":"user","content":""}', "]}"),
    "parts": filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}"),
    "schema": filled(
        '{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":'
        '{"enum":[',
        "1",
        "]}}}}",
    ),
}


class _Stalls:
    """The longest time for which the loop did nothing else, seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.perf_counter() - before_s - 0.005)


async def test_bodies_of_millions_of_values_stall_nobody() -> None:
    """Each of them took seconds of the loop, and eight at once so many together."""
    stalls = _Stalls()
    async with running() as app, gateway(app.address) as gate:
        watching = asyncio.create_task(stalls.watch())
        bodies = [MANY["ids"], *MANY.values()]
        answers = await asyncio.gather(
            *(gate.web.post(CHAT, content=body, headers=JSON, timeout=120.0) for body in bodies)
        )
        watching.cancel()
    assert [answer.status_code for answer in answers] == [400] * len(bodies)
    assert in_time(stalls.longest_s, 0.25), f"stalled for {stalls.longest_s:.2f} s"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that parsed a body."""
    seen: list[str] = []

    def noting(body: bytes) -> dict[str, Any]:
        seen.append(threading.current_thread().name)
        return read_json(body)

    monkeypatch.setattr(parsing, "read_json", noting)
    return seen


async def test_only_large_bodies_leave_the_loop_and_one_after_the_other(threads: list[str]) -> None:
    async with running(NotingEngine(answer=saying("Hi")), max_active_turns=4) as app, gateway(app.address) as gate:
        assert (await gate.ask(HELLO)).status_code == 200
        assert threads == [threading.current_thread().name]
        large = [gate.web.post(CHAT, content=padded(), headers=JSON) for _ in range(4)]
        assert [answer.status_code for answer in await asyncio.gather(*large)] == [200] * 4
    assert threads[1:] == ["body_0"] * 4


async def test_large_bodies_are_parsed_for_those_only_whom_a_server_knows(tmp_path: Path, threads: list[str]) -> None:
    keys, own, key = tmp_path / "keys.yaml", tmp_path / "own", new_key()
    keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n", encoding="utf-8")
    own.write_text(key, encoding="ascii")
    async with running(NotingEngine(answer=saying("Hi")), keys=str(keys)) as app:
        async with gateway(app.address) as gate:
            assert await _status(gate) == 401
            assert await _status(gate, authorization="Bearer someone") == 401
            assert await _status(gate, authorization="Basic x") == 401
            assert threads == []
            assert await _status(gate, authorization=f"Bearer {key}") == 200
        async with gateway(app.address, api_key_file=str(own)) as gate:
            assert await _status(gate) == 200
    assert len(threads) == 2


async def _status(gate: Gateway, **headers: str) -> int:
    return (await gate.web.post(CHAT, content=padded(), headers={**JSON, **headers})).status_code
