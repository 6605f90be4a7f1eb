"""A model that loads for long, as a kubelet sees it: the chart's probes on a test's clock, put to a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.app import App
from tests.fakes import FakeEngine
from tests.helm.rendering import render, server
from tests.service.running import quick

SERVING = health_pb2.HealthCheckResponse.SERVING


class Kubelet:
    """Looks as the kubelet does: until the start-up probe has succeeded once it is the only one asked."""

    def __init__(self, container: dict[str, Any], stub: health_pb2_grpc.HealthStub) -> None:
        self._container, self._stub = container, stub
        self.started = False
        self.killed_by = ""

    async def watch(self, seconds: float) -> None:
        """So many seconds of the kubelet's clock; ends at once when it kills the container or sees it start."""
        name = "livenessProbe" if self.started else "startupProbe"
        probe = self._container[name]
        failed = 0
        for _ in range(int(seconds / probe["periodSeconds"])):
            if await self._answers(probe["grpc"]["service"]):
                failed = 0
                if not self.started:
                    self.started = True
                    return
                continue
            failed += 1
            if failed >= probe.get("failureThreshold", 3):
                self.killed_by = name
                return

    async def _answers(self, question: str) -> bool:
        answer = await self._stub.Check(health_pb2.HealthCheckRequest(service=question), timeout=30)
        return bool(answer.status == SERVING)


@asynccontextmanager
async def loading_pod(container: dict[str, Any]) -> AsyncIterator[tuple[Kubelet, threading.Event]]:
    """A server whose model loads until the event is set, and who watches it."""
    engine, loaded = FakeEngine(), threading.Event()

    def open_slowly(listener: Any) -> Any:
        assert loaded.wait(60)
        return engine.opener()(listener)

    app = App(quick(probe_listen="127.0.0.1:0"), open_slowly)
    await app.start()
    assert app.probe_address is not None
    try:
        async with grpc.aio.insecure_channel(app.probe_address) as channel:
            yield Kubelet(container, health_pb2_grpc.HealthStub(channel)), loaded
    finally:
        loaded.set()
        await app.ready()
        await app.close()


async def test_k8s_01_a_load_of_120_s_is_survived_and_then_served() -> None:
    async with loading_pod(server(render())) as (kubelet, loaded):
        await kubelet.watch(120)
        assert (kubelet.started, kubelet.killed_by) == (False, "")
        loaded.set()
        async with asyncio.timeout(30):
            while not kubelet.started:
                await kubelet.watch(5)
        await kubelet.watch(120)
        assert kubelet.killed_by == ""


async def test_k8s_01_a_load_beyond_the_budget_is_ended() -> None:
    budget = {"probes": {"startup": {"budgetSeconds": 60}}, "variant": "cpu", "placement": {"capacity": "anywhere"}}
    async with loading_pod(server(render(budget))) as (kubelet, _):
        await kubelet.watch(120)
        assert kubelet.killed_by == "startupProbe"
