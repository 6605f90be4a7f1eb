"""What many requests and bad clients leave behind in `soloist serve`, a process of its own on a tiny model.

The long forms are marked slow. Each prints its figures (`pytest -rP`); tests/RELIABILITY.md keeps them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.client import BadRequestError, ChatClient, Delta, OverloadedError, Retries
from soloist.v1 import chat_pb2
from tests import http2
from tests.checkpoints import Sizes, write_tiny_folder
from tests.contention import in_time
from tests.running_server import RunningServer, start_server

CHAT = "/soloist.v1.ChatService/Chat"
NO_END = dict.fromkeys(range(8), -100.0)
MIB = 1 << 20
ONCE = Retries(attempts=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("endurance")
    model = write_tiny_folder(folder / "model", sizes=Sizes(layers=1, context=1024))
    flags = ("--device", "cpu", "--threads", "1", "--context", "1024", "--queue-depth", "100")
    alone = ("--max-active-turns", "1")  # so that a reader's gaps are its own: two turns share the steps by design
    with start_server("--model", str(model), *flags, *alone, "--log-level", "warning", log=folder / "log") as server:
        yield server


def in_full(*values: object) -> object:
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


async def idle(chat: ChatClient, within_s: float = 10.0) -> None:
    """Until no turn waits or plays."""
    async with asyncio.timeout(within_s):
        while True:
            load = await chat.load()
            if load.active_turns == load.queued_turns == 0:
                return
            await asyncio.sleep(0.02)


# Promise 2: many requests.


@pytest.mark.parametrize("requests", [400, in_full(10_000)])
async def test_promise_02_memory_files_and_threads_stay_as_they_are(server: RunningServer, requests: int) -> None:
    process = psutil.Process(server.process.pid)
    chance = random.Random(2)

    async def one(chat: ChatClient) -> None:
        """Short, as any client might ask: whole, of a session, left early, or wrongly."""
        kind = chance.choice(["whole", "whole", "session", "left", "wrong"])
        text = "words " * chance.randint(1, 20)
        fields = {"session_id": str(chance.randrange(50))} if kind == "session" else {}
        if kind == "wrong":
            with pytest.raises(BadRequestError):
                await chat.ask(text, temperature=-1.0)
            return
        async with aclosing(chat.stream(text, max_tokens=chance.randint(1, 4), seed=1, **fields)) as events:  # type: ignore[arg-type]
            async for event in events:
                if kind == "left" and isinstance(event, Delta):
                    break

    async def many(chat: ChatClient, numbers: Iterator[int]) -> None:
        for _ in numbers:
            await one(chat)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(ChatClient(server.target, retries=ONCE)) for _ in range(4)]

        async def half() -> tuple[int, int, int]:
            numbers = iter(range(requests // 2))
            await asyncio.gather(*(many(chat, numbers) for chat in clients))
            await idle(clients[0])
            return process.memory_info().rss, process.num_fds(), process.num_threads()

        began_s = time.monotonic()
        before, after = await half(), await half()
    took_s = time.monotonic() - began_s
    grown = after[0] - before[0]
    print(
        f"{requests} requests in {took_s:.0f} s: resident {before[0] / MIB:.1f} MiB at half, {grown / MIB:+.2f} MiB "
        f"({grown / before[0]:+.2%}) at the end; descriptors {before[1]} and {after[1]}, threads {before[2]} and "
        f"{after[2]}"
    )
    assert grown <= min(0.05 * before[0], 100 * MIB)
    assert after[1:] == before[1:]


# Promise 7: clients that never read.


async def gaps_s(chat: ChatClient, go_on: Callable[[], Awaitable[bool]]) -> list[float]:
    """Seconds between tokens as a reader sees them, over turns that are let in before others."""
    gaps: list[float] = []
    while await go_on():
        last_s: float | None = None
        async for event in chat.stream("Hello", max_tokens=100, temperature=0.0, logit_bias=NO_END, priority=100):
            if isinstance(event, Delta):
                now_s = time.monotonic()
                if last_s is not None:
                    gaps += [(now_s - last_s) / len(event.token_ids)] * len(event.token_ids)
                last_s = now_s
    return gaps


@pytest.mark.parametrize(("clients", "deadline_s"), [(12, 4), in_full(100, 45)])
@pytest.mark.parametrize("window", [0, 65_535], ids=["window-0", "window-64k"])
async def test_promise_07_clients_that_never_read_cost_others_nothing(
    server: RunningServer, clients: int, deadline_s: int, window: int
) -> None:
    process = psutil.Process(server.process.pid)
    wish = chat_pb2.ChatRequest(
        messages=[chat_pb2.Message(role=chat_pb2.ROLE_USER, content="Tell me")], max_tokens=512, logit_bias=NO_END
    ).SerializeToString()
    host, _, port = server.target.rpartition(":")
    async with ChatClient(server.target) as chat, AsyncExitStack() as stack:
        await chat.ask("warm", max_tokens=4)
        rss = [process.memory_info().rss]
        began_s = time.monotonic()
        for _ in range(clients):
            # Nothing ever reads these: what the server sends stays in the kernel's buffers, or in the server.
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            stack.callback(writer.close)
            writer.write(http2.opening(window) + http2.settings_ack() + http2.call(1, CHAT, wish, deadline_s))
        most = 0

        async def busy() -> bool:
            nonlocal most
            rss.append(process.memory_info().rss)
            load = await chat.load()
            most = max(most, load.active_turns + load.queued_turns)
            return load.active_turns + load.queued_turns > 0 and time.monotonic() - began_s < deadline_s

        async with asyncio.timeout(30):
            while not await busy():
                pass
        beside = await gaps_s(chat, busy)
        await idle(chat, max(1.0, began_s + deadline_s + 1.0 - time.monotonic()) + 30.0)
        free_s = time.monotonic() - began_s
        turns = iter(range(10))

        async def few() -> bool:
            return next(turns, None) is not None

        alone = await gaps_s(chat, few)
    grown = max(rss) - rss[0]
    medians = statistics.median(beside), statistics.median(alone)
    print(
        f"{clients} clients, window {window}: {most} in flight at most; {grown / MIB:+.1f} MiB at most; all places "
        f"free after {free_s:.1f} s of {deadline_s} s; another reader's gaps: median {medians[0] * 1e3:.2f} ms beside "
        f"them, {medians[1] * 1e3:.2f} ms alone ({medians[0] / medians[1] - 1:+.1%})"
    )
    assert len(beside) >= 100
    assert most >= clients * 3 // 4
    assert grown <= 50 * MIB
    assert in_time(free_s - deadline_s, 1.0)
    if clients == 100:
        assert medians[0] <= medians[1] * 1.1
    else:  # a short look is a rough one
        assert in_time(medians[0], medians[1] * 2.0)


# Promise 8: floods of streams.


@pytest.mark.parametrize(("streams", "within_s"), [(1_000, 1.0), in_full(10_000, 10.0)])
async def test_promise_08_ten_thousand_streams_opened_and_reset_harm_nobody(
    server: RunningServer, streams: int, within_s: float
) -> None:
    wish = chat_pb2.ChatRequest(
        messages=[chat_pb2.Message(role=chat_pb2.ROLE_USER, content="Tell me")], max_tokens=512, logit_bias=NO_END
    ).SerializeToString()
    host, _, port = server.target.rpartition(":")
    seconds: list[float] = []
    over = asyncio.Event()

    async def probe() -> None:
        async with grpc.aio.insecure_channel(server.target, (("mine", 1),)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not over.is_set():
                asked_s = time.monotonic()
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
                seconds.append(time.monotonic() - asked_s)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                await asyncio.sleep(0.02)

    async def throw_away(reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while await reader.read(1 << 16):
                pass

    async with ChatClient(server.target) as chat:
        await chat.ask("warm", max_tokens=4)
        probing = asyncio.create_task(probe())
        began_s = time.monotonic()
        connections, sent, flooded_s = 0, 0, 0.0
        while sent < streams:
            reader, writer = await asyncio.open_connection(host, int(port))
            connections += 1
            ended = asyncio.create_task(throw_away(reader))
            writer.write(http2.opening() + http2.settings_ack())
            stream = 1
            while sent < streams and not ended.done():
                for _ in range(10):
                    writer.write(http2.call(stream, CHAT, wish) + http2.reset(stream))
                    stream += 2
                    sent += 1
                await writer.drain()
                await asyncio.sleep(max(0.0, began_s + sent * within_s / streams - time.monotonic()))
            if sent >= streams:
                flooded_s = time.monotonic() - began_s
                await idle(chat)
            writer.close()
            await ended
        over.set()
        await probing
        assert (await chat.ask("Hi", max_tokens=4)).finished.completion_tokens >= 1
    seconds.sort()
    p99_s = seconds[int(len(seconds) * 0.99)]
    print(
        f"{sent} streams opened and reset in {flooded_s:.1f} s over {connections} connections; health: {len(seconds)} "
        f"asked, p50 {statistics.median(seconds) * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms"
    )
    assert server.process.poll() is None
    assert in_time(p99_s, 0.1)


# Promise 11: more than there is room for.


@pytest.mark.slow
async def test_promise_11_a_thousand_at_once_on_a_process(server: RunningServer) -> None:
    ends: Counter[str] = Counter()
    refused_s: list[float] = []
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(ChatClient(server.target, retries=ONCE, options=(("mine", n),)))
            for n in range(20)
        ]

        async def one(chat: ChatClient) -> None:
            asked_s = time.monotonic()
            try:
                answer = await chat.ask("Hello", max_tokens=16, logit_bias=NO_END)
            except OverloadedError as error:
                refused_s.append(time.monotonic() - asked_s)
                ends["refused" if error.retry_after_s else "refused without a time"] += 1
            else:
                assert len(answer.token_ids) == 16
                ends["answered"] += 1

        for chat in clients:
            await chat.load()
        await asyncio.gather(*(one(clients[n % len(clients)]) for n in range(1_000)))
        await idle(clients[0])
        asked_s = time.monotonic()
        await clients[0].ask("Hello", max_tokens=1)
        after_s = time.monotonic() - asked_s
    refused_s.sort()
    print(
        f"1,000 at once: {ends['answered']} answered, {ends['refused']} refused; the last refusal after "
        f"{refused_s[-1] * 1e3:.0f} ms with all thousand being sent; one after that {after_s * 1e3:.0f} ms"
    )
    assert ends["answered"] + ends["refused"] == 1_000
    assert ends["answered"] >= 101
    assert server.process.poll() is None
