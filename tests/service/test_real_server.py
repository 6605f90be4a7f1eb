"""`soloist serve` on the embedded model, as a process: what only the whole thing can show."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from service.client import BadRequestError, ChatClient
from tests.contention import in_time
from tests.running_server import RunningServer, launch_server, start_server

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


def show(during: str, seconds: list[float]) -> None:
    p50, p95, p99 = (seconds[int(len(seconds) * share)] * 1e3 for share in (0.5, 0.95, 0.99))
    print(f"health during {during}: {len(seconds)} asked, p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms")


async def test_promise_22_health_answers_during_prefill_decode_and_tokenising(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        count = asyncio.create_task(chat.count_tokens(WORDS * 800))
        reading = asyncio.create_task(chat.ask(WORDS * 60, max_tokens=24))
        seconds = await probe(real_server.target, lambda: count.done() and reading.done())
        await count
        await reading

    show("prefill, decode and tokenising", seconds)
    assert len(seconds) >= 50
    assert in_time(seconds[int(len(seconds) * 0.99)], 0.05)


@pytest.mark.slow
async def test_promise_22_in_full_health_answers_during_a_prefill_of_4000_tokens(
    embedded_model: Path, tmp_path: Path
) -> None:
    flags = ("--device", "cpu", "--context", "4608", "--slots", "1", "--prefill-chunk", "4096")
    with start_server(*flags, log=tmp_path / "soloist.log") as server:
        async with ChatClient(server.target) as chat:
            assert await chat.count_tokens(WORDS * 400) >= 4000
            reading = asyncio.create_task(chat.ask(WORDS * 400, max_tokens=24))
            seconds = await probe(server.target, reading.done)
            await reading

    show("a prefill of 4,000 tokens", seconds)
    assert len(seconds) >= 300
    assert seconds[int(len(seconds) * 0.99)] <= 0.05


async def test_promise_22_health_answers_while_the_model_loads(embedded_model: Path, tmp_path: Path) -> None:
    seconds = []
    with launch_server("--device", "cpu", "--context", "512", "--slots", "1", log=tmp_path / "soloist.log") as server:
        async with grpc.aio.insecure_channel(server.target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            # The port opens first of all.
            status = (await stub.Check(request, timeout=30, wait_for_ready=True)).status
            while status == health_pb2.HealthCheckResponse.NOT_SERVING:
                asked_s = time.monotonic()
                status = (await stub.Check(request, timeout=5)).status
                seconds.append(time.monotonic() - asked_s)
                await asyncio.sleep(0.005)
    seconds.sort()

    assert status == health_pb2.HealthCheckResponse.SERVING
    show("the load", seconds)
    assert len(seconds) >= 50
    # Importing torch and building tables hold the interpreter's lock in C a few times, for up to a tenth of a second.
    assert seconds[int(len(seconds) * 0.95)] <= 0.05
    assert seconds[-1] <= 1.0


@pytest.mark.parametrize("replies", [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_txt_10_replies_show_no_control_string_and_a_whole_one_ends_with_stop(
    real_server: RunningServer, replies: int
) -> None:
    async with ChatClient(real_server.target) as chat:
        whole = await chat.ask("What is the capital of France?", temperature=0, repetition_penalty=1.1, max_tokens=128)
        others = [await chat.ask("Hi!", temperature=1.0, seed=seed, max_tokens=24) for seed in range(replies)]

    assert whole.finished.reason == "stop"
    assert whole.finished.stop_token_id in (0, 2)
    for answer in (whole, *others):
        assert "<|" not in answer.text
        assert answer.finished.reason in ("stop", "length")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
async def test_the_embedded_model_serves_in_1800_mib(embedded_model: Path, tmp_path: Path) -> None:
    """With all the defaults of `soloist serve`, after a turn that fills a good part of a context."""
    with start_server("--device", "cpu", log=tmp_path / "soloist.log") as server:
        async with ChatClient(server.target) as chat:
            await chat.ask(WORDS * 60, max_tokens=16)
        peak_kib = await asyncio.to_thread(peak_resident_kib, server.process.pid)

    print(f"peak resident memory: {peak_kib / 1024:.0f} MiB")
    assert peak_kib <= 1800 * 1024


def peak_resident_kib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


async def test_eng_10_a_history_over_the_context_is_refused_with_both_counts(real_server: RunningServer) -> None:
    async with ChatClient(real_server.target) as chat:
        with pytest.raises(BadRequestError, match="the context holds 2048") as caught:
            await chat.ask(WORDS * 300)
    assert caught.value.reason == "CONTEXT_LENGTH"


async def test_promise_16_megabytes_are_refused_without_counting_them(real_server: RunningServer) -> None:
    message = {"role": "user", "content": "7" * 1_040_000}
    async with ChatClient(real_server.target) as chat:
        with pytest.raises(BadRequestError, match=r"at least \d+ tokens; the context holds 2048"):
            await chat.ask([message] * 4)
        with pytest.raises(BadRequestError, match=r"at least \d+ tokens"):
            await chat.count_tokens([message] * 4)


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
