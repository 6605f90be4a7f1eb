"""The load report that balancers read: its bytes, its rates, and that calls carry it."""

from __future__ import annotations

import asyncio
import base64
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import StepError
from service.app import App
from service.client import ChatClient, ChatError
from service.events import Load, TurnEnd, TurnEnded
from service.ops.load_report import MEAN_OVER_S, TRAILER, LoadReport, Rate
from tests.fakes import FakeEngine, saying
from tests.service.core import HandClock
from tests.service.running import running

LOAD = Load(
    queued_turns=3,
    active_turns=1,
    predicted_wait_s=2.5,
    inter_token_s=0.01,
    kv_tokens_used=25,
    kv_tokens_total=100,
    draining=False,
)


def read(data: bytes) -> dict[int, Any]:
    """The wire format by hand: doubles by field number, and maps of text to double."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        number, kind = data[at] >> 3, data[at] & 7
        at += 1
        if kind == 1:
            found[number] = struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            assert kind == 2
            length = data[at]
            entry = data[at + 1 : at + 1 + length]
            at += 1 + length
            name = entry[2 : 2 + entry[1]].decode()
            value = struct.unpack("<d", entry[3 + entry[1] :])[0] if len(entry) > 2 + entry[1] else 0.0
            found.setdefault(number, {})[name] = value
    return found


def ended(end: TurnEnd) -> TurnEnded:
    return TurnEnded("r", end, 1.0, 1, 0, 1, 0, 1, {})


def test_numbers_of_fields_are_those_of_orca_v3() -> None:
    clock = HandClock()
    report = LoadReport(lambda: LOAD, turns=2, clock=clock)
    report.service_event(ended(TurnEnd.STOP))
    report.service_event(ended(TurnEnd.FAILED))

    said = read(report.encoded())

    assert said[2] == said[5]["kv_cache"] == 0.25
    assert said[9] == 2.0
    assert said[6] == pytest.approx(2 / MEAN_OVER_S)
    assert said[7] == pytest.approx(1 / MEAN_OVER_S)
    assert said[8] == {
        "queued_turns": 3.0,
        "active_turns": 1.0,
        "predicted_wait_seconds": 2.5,
        "inter_token_seconds": 0.01,
    }


def test_a_rate_is_that_of_a_steady_stream_and_fades() -> None:
    rate = Rate()
    for n in range(1000):
        rate.count(n / 10)
    assert rate.at(100.0) == pytest.approx(10.0, rel=0.02)
    assert rate.at(100.0 + 5 * MEAN_OVER_S) < 0.1


async def trailers_of(buf: str, app: App, method: str, request: str) -> dict[int, Any] | None:
    """The report at the end of one call. gRPC's own Python client hides it: it is meant for its balancers."""
    command = [buf, "curl", "-v", "--protocol", "grpc", "--http2-prior-knowledge", "--data", request]
    process = await asyncio.create_subprocess_exec(
        *command, f"http://{app.address}/{method}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, shown = await process.communicate()
    found = re.findall(rf"{TRAILER}: (\S+)", shown.decode(), re.IGNORECASE)
    return read(base64.b64decode(found[-1] + "==")) if found else None


async def test_every_end_of_a_call_carries_it_and_probes_do_not(require_tool: Callable[[str], str]) -> None:
    buf = require_tool("buf")
    engine = FakeEngine(answer=saying("Hi"))
    async with running(engine) as app:
        async with ChatClient(app.address) as chat:
            await chat.ask("x")
            engine.fail(0, StepError("no"))
            with pytest.raises(ChatError):
                await chat.ask("x")
        good = '{"messages": [{"role": "ROLE_USER", "content": "Hi"}]}'
        for method, request in (("GetLoad", "{}"), ("Chat", good), ("Chat", "{}")):
            said = await trailers_of(buf, app, f"soloist.v1.ChatService/{method}", request)
            assert said is not None
            assert said[6] > said[7] > 0
            assert set(said[8]) == {"queued_turns", "active_turns", "predicted_wait_seconds", "inter_token_seconds"}
        assert await trailers_of(buf, app, "grpc.health.v1.Health/Check", "{}") is None
