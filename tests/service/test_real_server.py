"""`soloist serve` on the embedded model, as a process: what only the whole thing can show."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from service.client import BadRequestError, ChatClient
from tests.running_server import RunningServer, start_server

WORDS = "one two three four five six seven eight nine ten "


async def probe(target: str, enough: Callable[[], bool]) -> list[float]:
    """Health's answers, one after the other, in seconds; every one must be SERVING."""
    seconds = []
    async with grpc.aio.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not enough():
            asked_s = time.monotonic()
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            seconds.append(time.monotonic() - asked_s)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            await asyncio.sleep(0.005)
    return sorted(seconds)


async def test_promise_22_health_answers_during_prefill_decode_and_tokenising(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        count = asyncio.create_task(chat.count_tokens(WORDS * 5000))
        reading = asyncio.create_task(chat.ask(WORDS * 60, max_tokens=24))
        seconds = await probe(real_server.target, lambda: count.done() and reading.done())
        await count
        await reading

    assert len(seconds) >= 50
    assert seconds[int(len(seconds) * 0.99)] <= 0.05


async def test_eng_10_a_history_over_the_context_is_refused_with_both_counts(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        with pytest.raises(BadRequestError, match="the context holds 2048") as caught:
            await chat.ask(WORDS * 300)
    assert caught.value.reason == "CONTEXT_LENGTH"


async def test_met_03_replays_and_eager_steps_are_the_decode_steps(real_server: RunningServer) -> None:
    def steps() -> tuple[float, float]:
        with urllib.request.urlopen(real_server.metrics_url, timeout=5) as page:
            families = text_string_to_metric_families(page.read().decode())
        samples = [sample for family in families for sample in family.samples]
        ran = ("soloist_graph_replays_total", "soloist_eager_steps_total")
        made = ("completion", "discarded")
        return (
            sum(sample.value for sample in samples if sample.name in ran),
            sum(
                sample.value
                for sample in samples
                if sample.name == "soloist_tokens_total" and sample.labels["kind"] in made
            ),
        )

    async with ChatClient(real_server.target) as chat:
        answer = await chat.ask("What is the capital of France?", max_tokens=16)
    ran, made = await asyncio.to_thread(steps)

    assert ran == made > 0
    assert answer.finished.replays + sum(answer.finished.eager_steps.values()) == answer.finished.completion_tokens


def test_a_server_stops_with_0_and_says_what_it_did(embedded_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "soloist.log"
    with start_server("--device", "cpu", "--context", "512", "--slots", "1", log=log) as server:
        pass

    assert server.process.returncode == 0
    text = log.read_text(encoding="utf-8")
    for said in ('"phase": "load"', '"message": "ready"', '"message": "drain"', '"message": "stopped"'):
        assert said in text
