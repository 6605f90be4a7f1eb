"""A server in a pod whose node goes hands its turns over before anybody sends a signal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.app import EXIT_DRAINED, App
from service.client import ChatClient, ChatError, Retries
from service.ops.health import Question, Readiness
from service.ops.pod_marks import DELETION_COST
from tests.fakes import FakeEngine, endless, saying
from tests.service.ops.kube_api import POD, TAINT, KubeApi, configuration, hang, kube_api
from tests.service.running import quick, until

IN_A_POD: Any = {
    "kubernetes": True,
    "pod_name": POD.name,
    "pod_namespace": POD.namespace,
    "node_name": POD.node,
}
ONCE = Retries(attempts=1)


@asynccontextmanager
async def pod_of(
    api: KubeApi, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[App]:
    """A server in the API's pod, ready; closed at the end if it has not ended."""
    monkeypatch.setattr("service.ops.kubernetes.in_cluster", lambda: configuration(api))
    app = App(quick(**IN_A_POD, **changes), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    try:
        yield app
    finally:
        engine.release()
        app.signal()
        app.signal()
        assert await asyncio.wait_for(run, 30) == EXIT_DRAINED


async def says_yes(app: App, question: Question) -> bool:
    async with grpc.aio.insecure_channel(app.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=question))
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def drains(app: App, cause: str) -> float | None:
    return app.metrics.registry.get_sample_value("soloist_drains_total", {"cause": cause})


async def test_a_server_whose_node_goes_hands_over_and_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(answer=endless, context=1 << 20)
    async with (
        kube_api() as api,
        pod_of(api, engine, monkeypatch, grace_s=0.3) as app,
        ChatClient(app.address, retries=ONCE) as chat,
    ):
        asking = asyncio.create_task(chat.ask("x"))
        await until(lambda: engine.decode_steps > 0)  # it plays: one that waits would be refused
        await api.change_node(taints=[TAINT], deleted=True)
        answer = await asyncio.wait_for(asking, 30)
        assert answer.finished.reason == "draining"
        assert answer.finished.resume_token
        assert (await says_yes(app, Question.READINESS), await says_yes(app, Question.LIVENESS)) == (False, True)
        with pytest.raises(ChatError):
            await chat.ask("too late")
        assert (drains(app, "node_disruption"), drains(app, "signal")) == (1, 0)
        await until(lambda: [event["reason"] for event in api.events] == ["NodeDisrupted"])
    assert drains(app, "signal") == 0, "what came first is what it left for"
    assert api.annotations == {DELETION_COST: "0"}


async def test_a_taint_that_may_be_taken_back_keeps_nobody_from_being_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        kube_api() as api,
        pod_of(api, FakeEngine(answer=saying("still here")), monkeypatch) as app,
        ChatClient(app.address, retries=ONCE) as chat,
    ):
        await api.change_node(taints=[TAINT])
        await until(lambda: [event["reason"] for event in api.events] == ["NodeTaintedForDisruption"])
        assert app.health.state is Readiness.SERVING
        assert (await chat.ask("x")).text == "still here"


async def test_a_busy_pod_is_dear_and_an_idle_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.pod_marks.WRITE_EVERY_S", 0.05)
    engine = FakeEngine(answer=endless, context=1 << 20)
    async with kube_api() as api, pod_of(api, engine, monkeypatch) as app, ChatClient(app.address) as chat:
        await until(lambda: api.annotations.get(DELETION_COST) == "0")
        asking = [asyncio.create_task(chat.ask("x")) for _ in range(3)]
        await until(lambda: int(api.annotations[DELETION_COST]) >= 300)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: int(api.annotations[DELETION_COST]) < 100)


async def test_an_api_that_hangs_keeps_no_turn_and_no_end_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kube_api() as api:
        api.faults = {"patch": [hang(api)] * 5, "watch": [hang(api)]}
        async with (
            pod_of(api, FakeEngine(answer=saying("at once")), monkeypatch) as app,
            ChatClient(app.address, retries=ONCE) as chat,
        ):
            await until(lambda: bool(api.of("patch") and api.of("watch")))
            answer = await asyncio.wait_for(chat.ask("x"), 2)
            assert answer.text == "at once"
            asyncio.get_running_loop().call_later(0.5, api.wakes.set)


async def test_a_server_whose_node_goes_while_it_loads_never_becomes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    may_open = threading.Event()
    engine = FakeEngine()

    def open_slowly(listener: Any) -> Any:
        assert may_open.wait(20)
        return engine.opener()(listener)

    async with kube_api() as api:
        monkeypatch.setattr("service.ops.kubernetes.in_cluster", lambda: configuration(api))
        app = App(quick(**IN_A_POD), open_slowly)
        await app.start()
        run = asyncio.create_task(app.run())
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: app.health.state is Readiness.DRAINING)
        may_open.set()
        await app.ready()
        assert app.health.state is Readiness.DRAINING
        assert (await says_yes(app, Question.LIVENESS), await says_yes(app, Question.READINESS)) == (True, False)
        assert not run.done(), "it would be started again there"
        app.signal()
        assert await asyncio.wait_for(run, 5) == EXIT_DRAINED
