"""The port for probes: three questions, from load to end, whatever the first port asks of its callers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.app import EXIT_DRAINED, EXIT_ENGINE_LOST, App, StartError
from service.client import ChatClient, Retries
from service.ops.health import Readiness
from service.rpc.servicer import SERVICE_NAME
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.certificates import Authority
from tests.checkpoints import write_tiny_folder
from tests.contention import contention
from tests.fakes import FakeEngine, endless, saying
from tests.running_server import free_ports, launch_server
from tests.service.running import in_flight, quick, running, until

NAMES = ("", SERVICE_NAME, "readiness", "liveness", "startup")
YES, NO = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
PROBES: Any = {"probe_listen": "127.0.0.1:0"}
LOADING, READY, LEAVING, LOST = "nnnyn", "yyyyy", "nnnyy", "nnnnn"


async def answers(channel: grpc.aio.Channel) -> str:
    """One letter a name, in the order of NAMES."""
    stub = health_pb2_grpc.HealthStub(channel)
    asked = [stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=30, wait_for_ready=True) for name in NAMES]
    statuses = [(await answer).status for answer in asked]
    assert set(statuses) <= {YES, NO}
    return "".join("y" if status == YES else "n" for status in statuses)


def probes_of(app: App) -> grpc.aio.Channel:
    assert app.probe_address is not None
    return grpc.aio.insecure_channel(app.probe_address)


async def test_k8s_01_each_state_from_load_to_the_end() -> None:
    engine = FakeEngine(answer=endless, context=1 << 20)
    may_open = threading.Event()

    def open_slowly(listener: Any) -> Any:
        assert may_open.wait(20)
        return engine.opener()(listener)

    app = App(quick(grace_s=0.2, **PROBES), open_slowly)
    await app.start()
    run = asyncio.create_task(app.run())
    async with probes_of(app) as channel, ChatClient(app.address, retries=Retries(attempts=1)) as chat:
        assert await answers(channel) == LOADING
        may_open.set()
        await app.ready()
        assert await answers(channel) == READY
        asking = asyncio.create_task(chat.ask("x"))
        await until(lambda: engine.decode_steps > 0)  # it plays: one that waits would be refused
        app.signal()
        await until(lambda: app.health.state is Readiness.DRAINING)
        assert await answers(channel) == LEAVING
        assert (await asking).finished.reason == "draining"
    assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def test_eng_03_a_hung_engine_fails_the_liveness_probe() -> None:
    engine = FakeEngine(answer=saying("never said"))
    engine.hold()
    app = App(quick(hang_s=0.5, **PROBES), engine.opener())
    await app.start()
    await app.ready()
    async with probes_of(app) as channel, ChatClient(app.address, retries=Retries(attempts=1)) as chat:
        asking = asyncio.create_task(chat.ask("x"))
        await until(lambda: app.health.state is Readiness.ENGINE_LOST)
        assert await answers(channel) == LOST
        await asyncio.gather(asking, return_exceptions=True)
    engine.release()
    assert await asyncio.wait_for(app.run(), 15) == EXIT_ENGINE_LOST


async def test_a_doubted_engine_is_not_ready_and_lives() -> None:
    async with running(**PROBES) as app, probes_of(app) as channel:
        app.health.move(Readiness.UNSOUND)
        assert await answers(channel) == LEAVING


async def test_probes_need_neither_certificate_nor_key_and_reach_nothing_else(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "ca")
    cert, key = authority.issue(tmp_path, "server", "127.0.0.1")
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n  - name: web\n    hash: sha256:{'0' * 64}\n")
    tls: Any = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(authority.ca), "keys": str(keys)}
    async with running(**tls, **PROBES) as app, probes_of(app) as channel:
        assert await answers(channel) == READY
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chat_pb2_grpc.ChatServiceStub(channel).GetServerInfo(chat_pb2.GetServerInfoRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        reflect: Any = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [answer async for answer in reflect(iter([b""]))]
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_promise_22_a_probe_is_answered_while_tokens_flow() -> None:
    engine = FakeEngine(answer=endless, context=1 << 16)
    async with running(engine, **PROBES) as app, probes_of(app) as channel, ChatClient(app.address) as chat:
        talks = [asyncio.create_task(chat.ask("x")) for _ in range(5)]
        await until(lambda: in_flight(app) == 5, 30)
        late_s = []
        for _ in range(3):  # a neighbour's burst spoils a round and not all of them
            rounds_s = []
            for _ in range(20):
                asked_s = time.monotonic()
                assert await answers(channel) == READY
                rounds_s.append((time.monotonic() - asked_s) / len(NAMES))
            late_s.append(max(rounds_s))
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        busy = await asyncio.to_thread(contention)

    assert min(late_s) <= 0.05 * busy


async def test_a_port_that_is_taken_ends_the_start_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=f"cannot listen on {address}: Address already in use"):
            await App(quick(probe_listen=address), FakeEngine().opener()).start()


async def test_k8s_01_a_real_process_answers_its_probes_from_its_load_to_its_end(tmp_path: Path) -> None:
    [port] = free_ports(1)
    model = str(write_tiny_folder(tmp_path / "model"))
    flags = ("--model", model, "--device", "cpu", "--probe-listen", f"127.0.0.1:{port}")
    with launch_server(*flags, log=tmp_path / "log") as server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await answers(channel) == LOADING
            seen = set()
            async with asyncio.timeout(60):
                while (state := await answers(channel)) != READY:
                    seen.add(state)
                    await asyncio.sleep(0.05)
            assert seen <= {LOADING}
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, 20) == 0
