"""A pod and its cluster, over real HTTP: what is written, what is heard, and that nothing of it reaches a turn."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.events import CaptureCause, CaptureOutcome, EagerReason, GraphCaptured, StepDone
from service.events import Load
from service.ops import cluster as cluster_module
from service.ops import pod_marks
from service.ops.cluster import Cluster
from service.ops.cluster_rights import RIGHTS
from service.ops.kubernetes import KubernetesApi
from service.ops.node_fate import Fate, fate
from service.ops.pod_marks import DELETION_COST, DO_NOT_DISRUPT
from tests.service.ops.kube_api import (
    POD,
    TAINT,
    KubeApi,
    configuration,
    hang,
    in_cluster,
    kube_api,
    of_resource,
    refuse,
    stream,
)
from tests.service.running import until

IDLE, BUSY = Load(0, 0, 0.0, 0.0, 0, 1, draining=False), Load(1, 1, 0.0, 0.0, 0, 1, draining=False)


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with kube_api() as served:
        yield served


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are too short to be waited for. What they are for is tested with a clock of its own."""
    monkeypatch.setattr(pod_marks, "WRITE_EVERY_S", 0.05)
    monkeypatch.setattr(pod_marks, "LET_GO_EVERY_S", 0.05)
    monkeypatch.setattr(pod_marks, "REST_S", 0.1)
    monkeypatch.setattr(cluster_module, "_FIRST_WAIT_S", 0.02)


def cost(api: KubeApi) -> int:
    return int(api.annotations.get(DELETION_COST, "0"))


# What is written.


async def test_the_deletion_cost_follows_the_work_and_ends_at_nothing(api: KubeApi) -> None:
    async with in_cluster(api) as (cluster, _, _):
        await until(lambda: DELETION_COST in api.annotations)
        assert cost(api) == 0
        cluster.show_load(BUSY)
        await until(lambda: cost(api) == 200)
        cluster.show_load(IDLE)
        await until(lambda: cost(api) == 0)
        cluster.show_load(BUSY)
        await until(lambda: cost(api) == 200)
    assert api.annotations == {DELETION_COST: "0"}


async def test_the_own_pod_is_patched_and_nothing_of_it_but_two_annotations(api: KubeApi) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, _, _):
        cluster.show_load(BUSY)
        await until(lambda: DO_NOT_DISRUPT in api.annotations)
    for request in api.of("patch"):
        assert (request.namespace, request.name, request.subresource) == (POD.namespace, POD.name, None)
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        assert set(request.data) == {"metadata"}
        assert set(request.data["metadata"]) == {"annotations"}
        assert set(request.data["metadata"]["annotations"]) == {DELETION_COST, DO_NOT_DISRUPT}


async def test_promise_12_karpenter_is_held_off_while_somebody_listens_and_no_longer_than_the_limit(
    api: KubeApi,
) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, _, _):
        cluster.show_load(BUSY)
        await until(lambda: DO_NOT_DISRUPT in api.annotations)
        now_s = time.time()
        assert api.holds_karpenter(now_s)
        assert api.holds_karpenter(now_s + 590)
        assert not api.holds_karpenter(now_s + 600)
        cluster.show_load(IDLE)
        await until(lambda: DO_NOT_DISRUPT not in api.annotations)


async def test_promise_12_at_the_limit_it_is_taken_off_though_the_turn_goes_on(api: KubeApi) -> None:
    """When exactly is tried with a clock of its own, in test_pod_marks: here a busy machine is no fault."""

    def written() -> list[tuple[str, bool]]:
        marks = [request.data["metadata"]["annotations"] for request in api.of("patch")]
        return [(mark[DELETION_COST], mark[DO_NOT_DISRUPT] is not None) for mark in marks]

    async with in_cluster(api, limit_s=1.5) as (cluster, _, _):
        cluster.show_load(BUSY)
        await until(lambda: ("200", True) in written())
        held = written().index(("200", True))
        await until(lambda: ("200", False) in written()[held:])
        assert {cost for cost, _ in written()[held:]} == {"200"}


async def test_inf_01_never_is_a_pod_marked_for_good(api: KubeApi) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, _, _):
        for load in (BUSY, IDLE, BUSY):
            cluster.show_load(load)
            await until(lambda load=load: (DO_NOT_DISRUPT in api.annotations) is (load is BUSY))  # type: ignore[misc]
    values = [request.data["metadata"]["annotations"][DO_NOT_DISRUPT] for request in api.of("patch")]
    assert all(value is None or value.endswith("s") for value in values)
    assert DO_NOT_DISRUPT not in api.annotations


async def test_what_another_process_left_goes_first(api: KubeApi) -> None:
    api.objects["v1/pods", POD.namespace, POD.name].patch({"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}})
    async with in_cluster(api, limit_s=0):
        await until(lambda: DO_NOT_DISRUPT not in api.annotations)


async def test_promise_12_the_hold_of_a_process_that_was_killed_ends_in_time_and_with_the_next(api: KubeApi) -> None:
    url = str(api.servers[0].url).rstrip("/")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.service.ops.held_pod", url, "300")
    await until(lambda: DO_NOT_DISRUPT in api.annotations, 60)
    held_s = time.time()
    process.send_signal(signal.SIGKILL)
    await process.wait()

    assert api.holds_karpenter(held_s), "nobody was there to take it off"
    assert not api.holds_karpenter(held_s + 300), "and nobody has to be"
    async with in_cluster(api, limit_s=300):  # the container is started again
        await until(lambda: DO_NOT_DISRUPT not in api.annotations)
    assert not api.holds_karpenter(time.time())


# What is heard.


async def test_a_node_that_goes_is_heard_of_once(api: KubeApi) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, went, _):
        cluster.show_load(BUSY)
        await until(lambda: DO_NOT_DISRUPT in api.annotations)
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: went == ["goes"])
        await until(lambda: DO_NOT_DISRUPT not in api.annotations)
        await until(lambda: cost(api) < 0)
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: [event["reason"] for event in api.events] == ["NodeDisrupted"])
    assert went == ["goes"]


async def test_inf_01_a_taint_alone_frees_karpenter_and_can_be_taken_back(api: KubeApi) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, went, _):
        cluster.show_load(BUSY)
        await until(lambda: DO_NOT_DISRUPT in api.annotations)
        await api.change_node(taints=[{"key": "other", "effect": "NoSchedule"}, TAINT])
        await until(lambda: DO_NOT_DISRUPT not in api.annotations and cost(api) < 0)
        await api.change_node(taints=[])
        await until(lambda: DO_NOT_DISRUPT in api.annotations and cost(api) == 200)
    assert not went


async def test_a_node_that_goes_already_when_the_server_starts_is_heard_of(api: KubeApi) -> None:
    await api.change_node(taints=[TAINT], deleted=True)
    async with in_cluster(api) as (_, went, _):
        await until(lambda: went == ["goes"])


async def test_other_nodes_are_nobodys_business(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []

    def look(node: Any) -> Fate:
        found = fate(node)
        looked_at.append(node)
        return found

    monkeypatch.setattr(cluster_module, "fate", look)
    async with in_cluster(api) as (_, went, _):
        await until(lambda: bool(api.of("watch")))
        assert api.of("watch")[0].params["fieldSelector"] == f"metadata.name={POD.node}"
        await api.change_node("ip-10-0-0-2.ec2.internal", taints=[TAINT], deleted=True)
        here = [{"key": "here", "effect": "NoSchedule"}]
        await api.change_node(taints=here)
        # Changes come in their order: of the other node it would have been heard before.
        await until(lambda: any(node["spec"].get("taints") == here for node in looked_at))
    assert {node["metadata"]["name"] for node in looked_at} == {POD.node}
    assert not went


def change(kind: str, version: str, **spec: Any) -> bytes:
    node = {"metadata": {"name": POD.node, "resourceVersion": version}, "spec": spec}
    return json.dumps({"type": kind, "object": node}).encode()


EXPIRED = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}).encode()
BOOKMARK = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "190"}}}).encode()


@pytest.mark.parametrize(
    ("faults", "versions"),
    [
        ([stream(change("ADDED", "170"))], [None, "170"]),
        ([stream(change("ADDED", "170"), change("MODIFIED", "180"), BOOKMARK)], [None, "190"]),
        ([stream(change("ADDED", "170"), then="break")], [None, "170"]),
        ([stream(change("ADDED", "170")), stream(EXPIRED)], [None, "170", None]),
        ([stream(change("ADDED", "170")), refuse(410, "Expired")], [None, "170", None]),
        ([stream(change("ADDED", "170")), refuse(500), refuse(429)], [None, "170", None, None]),
        ([stream(b"no JSON at all")], [None, None]),
        ([refuse(401, "Unauthorized"), refuse(403, "Forbidden")], [None, None, None]),
    ],
)
async def test_a_watch_that_breaks_off_goes_on_where_it_was_or_anew(
    api: KubeApi, faults: list[Any], versions: list[str | None]
) -> None:
    api.faults["watch"] = faults
    async with in_cluster(api) as (_, went, _):
        await until(lambda: len(api.of("watch")) == len(versions))
        assert [request.params.get("resourceVersion") for request in api.of("watch")] == versions
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: went == ["goes"])


async def test_a_watch_in_which_nothing_is_heard_is_opened_again(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.kubernetes._WATCH_QUIET_S", 0.1)
    async with in_cluster(api) as (_, went, asked):
        await until(lambda: len(api.of("watch")) >= 3)
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: went == ["goes"])
    assert ("watch_node", True) not in asked


async def test_an_api_that_is_down_is_asked_less_and_less(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[float] = []

    def uniform(low: float, high: float) -> float:
        longest.append(high)
        return 0.0

    monkeypatch.setattr("service.ops.cluster.random.uniform", uniform)
    api.faults["watch"] = [refuse(503) for _ in range(14)]
    async with in_cluster(api):
        await until(lambda: len(api.of("watch")) == 15)
    assert longest[:3] == [0.04, 0.08, 0.16]
    assert max(longest) == 30.0


# What operators see.


def captured(outcome: CaptureOutcome, graph: str) -> GraphCaptured:
    return GraphCaptured(graph, CaptureCause.START, outcome, 0.1, 0)


async def test_failed_captures_and_eager_steps_are_events_of_the_pod_told_once(api: KubeApi) -> None:
    async with in_cluster(api) as (cluster, _, asked):
        await until(lambda: DELETION_COST in api.annotations)
        cluster.engine_event(captured(CaptureOutcome.CAPTURED, "b256_r1_greedy"))
        for bucket in (256, 512, 1024):
            cluster.engine_event(captured(CaptureOutcome.OUT_OF_MEMORY, f"b{bucket}_r1_greedy"))
        for _ in range(1000):
            cluster.engine_event(StepDone("b256_r1_greedy", None, 0.01))
            cluster.engine_event(StepDone(None, EagerReason.NO_CUDA, 0.01))
            cluster.engine_event(StepDone(None, EagerReason.OUT_OF_MEMORY, 0.01))
        await until(lambda: len(api.events) == 2)
        await until(lambda: asked.count(("event", False)) == 2)
    first, second = api.events
    assert first["note"] == "a graph could not be captured: out_of_memory (b256_r1_greedy)"
    assert second["note"] == "decode steps are no graph replays: out_of_memory"
    for event in api.events:
        assert event["type"] == "Warning"
        assert event["regarding"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": POD.namespace,
            "name": POD.name,
            "uid": "5ca1ab1e",
        }
        assert {"eventTime", "reportingController", "reportingInstance", "action", "reason"} <= event.keys()


@pytest.mark.parametrize("status", [503, 429])
async def test_an_event_that_nobody_could_take_is_told_again(
    api: KubeApi, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ops.cluster_events.AGAIN_S", 0.05)
    api.faults["create"] = [refuse(status), refuse(status)]
    async with in_cluster(api) as (cluster, _, asked):
        cluster.engine_event(captured(CaptureOutcome.FAILED, "b256_r1_greedy"))
        await until(lambda: ("event", False) in asked)
    assert asked.count(("event", True)) == 2
    assert {event["note"] for event in api.events} == {"a graph could not be captured: failed (b256_r1_greedy)"}


async def test_an_event_that_may_not_be_told_is_not_told_again(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.cluster_events.AGAIN_S", 0.0)
    api.faults["create"] = [refuse(403)]
    async with in_cluster(api) as (cluster, _, asked):
        cluster.engine_event(captured(CaptureOutcome.FAILED, "b256_r1_greedy"))
        await until(lambda: ("event", True) in asked)
    assert len(api.events) == 1


# What the API cannot do to a turn.


async def test_an_api_that_hangs_holds_nobody_up(api: KubeApi) -> None:
    api.faults = {"patch": [hang(api)], "watch": [hang(api)]}
    async with in_cluster(api, limit_s=600) as (cluster, _, _):
        await until(lambda: bool(api.of("patch") and api.of("watch")))
        began_s = time.perf_counter()
        for turn in range(1000):
            cluster.show_load(BUSY if turn % 2 else IDLE)
            cluster.engine_event(StepDone(None, EagerReason.CAPTURE_FAILED, 0.01))
        took_s = time.perf_counter() - began_s
        closing_s = time.perf_counter()
        await asyncio.to_thread(cluster.close, 0.3)
        assert time.perf_counter() - closing_s < 1.0
        api.wakes.set()
    assert took_s < 0.5


async def test_failures_are_counted_and_each_kind_is_said_once_until_it_works_again(
    api: KubeApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("soloist"), "propagate", True)
    api.faults = {"patch": [refuse(403, "Forbidden")] * 3, "create": [refuse(403, "Forbidden")]}
    with caplog.at_level(logging.INFO, "soloist.cluster"):
        async with in_cluster(api) as (cluster, _, asked):
            cluster.engine_event(StepDone(None, EagerReason.CAPTURE_FAILED, 0.01))
            await until(lambda: ("deletion_cost", False) in asked and ("event", True) in asked)
    assert asked.count(("deletion_cost", True)) == 3
    said = [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]
    assert [text for text, fields in said if fields["operation"] == "deletion_cost"] == [
        "the cluster's API does not do as asked; turns go on as before",
        "the cluster's API does as asked again",
    ]
    assert {fields["error"] for _, fields in said if "error" in fields} == {"403 Forbidden (made up)"}


async def test_no_api_at_all_is_one_line_for_each_kind(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(logging.getLogger("soloist"), "propagate", True)
    async with kube_api() as api:
        url = configuration(api)
    with caplog.at_level(logging.INFO, "soloist.cluster"):
        asked: list[Any] = []
        cluster = Cluster(KubernetesApi(url, POD), 0.0, lambda: None, lambda call, *, failed: asked.append(failed))
        cluster.start()
        await until(lambda: len(asked) >= 6)
        await asyncio.to_thread(cluster.close, 5.0)
    assert all(asked)
    assert sorted(record.__dict__["fields"]["operation"] for record in caplog.records) == [
        "deletion_cost",
        "watch_node",
    ]
    assert all("refused" in record.__dict__["fields"]["error"] for record in caplog.records)


# What is allowed.


async def test_rbac_rights_are_those_that_are_used(api: KubeApi) -> None:
    async with in_cluster(api, limit_s=600) as (cluster, went, _):
        cluster.show_load(BUSY)
        await until(lambda: DO_NOT_DISRUPT in api.annotations)
        cluster.engine_event(captured(CaptureOutcome.FAILED, "b256_r1_greedy"))
        api.faults["watch"] = [stream(EXPIRED)]
        await api.change_node(taints=[TAINT])
        await until(lambda: cost(api) < 0)
        await api.change_node(taints=[TAINT], deleted=True)
        await until(lambda: went == ["goes"] and len(api.events) == 3)

    assert api.used() == {(right.group, right.resource, right.verb) for right in RIGHTS}
    in_namespaces = {(of_resource(request)[1], request.namespace is not None) for request in api.asked}
    assert in_namespaces == {(right.resource, not right.of_cluster) for right in RIGHTS}
