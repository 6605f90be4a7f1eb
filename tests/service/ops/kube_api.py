"""A Kubernetes API over real HTTP, with one pod and its node in it: what a server talks to in its cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp.web
import kmock
from kubernetes import client

from service.ops.cluster import Cluster
from service.ops.kubernetes import KubernetesApi, PodName
from service.ops.node_fate import DISRUPTED
from service.ops.pod_marks import DO_NOT_DISRUPT

POD = PodName("soloist-7d4b9-x2x1z", "soloist", "ip-10-0-0-1.ec2.internal")
TAINT = {"key": DISRUPTED, "effect": "NoSchedule"}

_KARPENTER = "X-Karpenter"  # marks what a test asks for itself
_VERBS = {
    kmock.action.LIST: "list",
    kmock.action.WATCH: "watch",
    kmock.action.FETCH: "get",
    kmock.action.CREATE: "create",
    kmock.action.UPDATE: "patch",
    kmock.action.DELETE: "delete",
}

Fault = Callable[[kmock.Request], Awaitable[Any]]


class KubeApi(kmock.KubernetesEmulator):
    """Counts what is asked of it, and fails as it is told.

    Attributes:
        asked: every request in order.
        faults: each next request of a verb takes one from the front; None lets that request pass.
    """

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.asked: list[kmock.Request] = []
        self.faults: dict[str, list[Fault | None]] = {}
        self.versions = 100
        self.wakes = asyncio.Event()
        self.objects["v1/pods", POD.namespace, POD.name] = {
            "metadata": {"name": POD.name, "namespace": POD.namespace, "uid": "5ca1ab1e", "annotations": {}},
            "status": {"startTime": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")},
        }
        for name in (POD.node, "ip-10-0-0-2.ec2.internal"):
            self.objects["v1/nodes", None, name] = {"metadata": {"name": name, "resourceVersion": "100"}, "spec": {}}
        self.resources["events.k8s.io/v1/events"] = kmock.ResourceInfo(kind="Event", namespaced=True)

    async def __call__(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        # Some versions of the client write `True`, which Kubernetes takes, and kmock does not.
        if raw_request.query.get("watch") == "True":
            raw_request = raw_request.clone(rel_url=raw_request.rel_url.update_query(watch="true"))
        return await super().__call__(raw_request)

    async def _handle(self, request: kmock.Request) -> aiohttp.web.StreamResponse:
        if _KARPENTER not in request.headers:
            self.asked.append(request)
        faults = self.faults.get(verb_of(request))
        fault = faults.pop(0) if faults else None
        if fault is not None:
            answer: aiohttp.web.StreamResponse = await fault(request)
            return answer
        response: aiohttp.web.StreamResponse = await super()._handle(request)
        return response

    # What it was asked, and what it holds.

    def used(self) -> set[tuple[str, str, str]]:
        """(API group, resource, verb) of every request."""
        return {(*of_resource(request), verb_of(request)) for request in self.asked}

    def of(self, verb: str) -> list[kmock.Request]:
        """Requests of this verb."""
        return [request for request in self.asked if verb_of(request) == verb]

    @property
    def annotations(self) -> dict[str, str]:
        """Of the pod."""
        found: dict[str, str] = dict(
            self.objects["v1/pods", POD.namespace, POD.name]["metadata"].get("annotations", {})
        )
        return found

    @property
    def started_s(self) -> float:
        """Unix time at which the pod was started."""
        return datetime.fromisoformat(
            self.objects["v1/pods", POD.namespace, POD.name]["status"]["startTime"]
        ).timestamp()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What `kubectl get events` would show."""
        return [request.data for request in self.of("create")]

    def holds_karpenter(self, at_s: float) -> bool:
        """What Karpenter makes of the pod at this Unix time: its rule, from 1.12 on."""
        value = self.annotations.get(DO_NOT_DISRUPT)
        if value is None or value == "true":
            return value == "true"
        seconds = re.fullmatch(r"(\d+)s", value)
        assert seconds is not None, f"{value} is no duration of Go's"
        return at_s - self.started_s < int(seconds[1])

    # What happens to the node.

    async def change_node(self, name: str = POD.node, *, taints: list[dict[str, str]], deleted: bool = False) -> None:
        """As Karpenter would, over HTTP, so that who watches hears of it."""
        self.versions += 1
        metadata: dict[str, Any] = {"resourceVersion": str(self.versions)}
        if deleted:
            metadata |= {"deletionTimestamp": "2026-12-01T00:00:00Z", "finalizers": ["karpenter.sh/termination"]}
        patch = {"metadata": metadata, "spec": {"taints": taints}}
        session = aiohttp.ClientSession(self.servers[0].url, headers={_KARPENTER: "yes"})
        async with session, session.patch(f"/api/v1/nodes/{name}", json=patch) as answer:
            assert answer.status == 200


def verb_of(request: kmock.Request) -> str:
    """As RBAC names it."""
    assert request.action is not None, request
    return _VERBS[request.action]


def of_resource(request: kmock.Request) -> tuple[str, str]:
    """API group and plural."""
    resource = request.resource
    assert resource is not None, request
    assert isinstance(resource.group, str), request
    assert isinstance(resource.plural, str), request
    return resource.group, resource.plural


def refuse(status: int, reason: str = "", then: Callable[[], None] = lambda: None) -> Fault:
    """Answer with this status."""

    async def fault(_: kmock.Request) -> aiohttp.web.Response:
        then()
        return aiohttp.web.json_response(
            {"kind": "Status", "code": status, "reason": reason, "message": f"{reason} (made up)"}, status=status
        )

    return fault


def hang(api: KubeApi) -> Fault:
    """Take the request and say nothing, until the API wakes."""

    async def fault(_: kmock.Request) -> aiohttp.web.Response:
        await api.wakes.wait()
        return aiohttp.web.Response(status=504)

    return fault


def stream(*lines: bytes, then: str = "end") -> Fault:
    """Answer a watch with these lines, and then end in order, or `break` in the middle of a line."""

    async def fault(request: kmock.Request) -> aiohttp.web.StreamResponse:
        raw = request._raw_request
        assert raw is not None, request
        response = aiohttp.web.StreamResponse()
        await response.prepare(raw)
        for line in lines:
            await response.write(line + b"\n")
        if then == "break":
            await response.write(b'{"type": "MODI')
            assert raw.transport is not None, request
            raw.transport.abort()
        return response

    return fault


def pour(piece: bytes, pause_s: float = 0.0, status: int = 200) -> Fault:
    """Answer with this piece again and again, for as long as somebody reads."""

    async def fault(request: kmock.Request) -> aiohttp.web.StreamResponse:
        raw = request._raw_request
        assert raw is not None, request
        response = aiohttp.web.StreamResponse(status=status)
        await response.prepare(raw)
        with suppress(ConnectionError):
            while True:
                await response.write(piece)
                await asyncio.sleep(pause_s)
        return response

    return fault


@asynccontextmanager
async def kube_api() -> AsyncIterator[KubeApi]:
    """The API, served on a free port of the loopback."""
    async with KubeApi() as api, kmock.Server(api):
        try:
            yield api
        finally:
            api.wakes.set()


def configuration(api: KubeApi) -> client.Configuration:
    """How to reach it."""
    return client.Configuration(host=str(api.servers[0].url).rstrip("/"))


@asynccontextmanager
async def in_cluster(
    api: KubeApi, limit_s: float = 0.0
) -> AsyncIterator[tuple[Cluster, list[str], list[tuple[str, bool]]]]:
    """A Cluster of the API's pod: with what it told of the node, and of requests (operation, failed)."""
    went: list[str] = []
    asked: list[tuple[str, bool]] = []
    cluster = Cluster(
        KubernetesApi(configuration(api), POD),
        limit_s,
        lambda: went.append("goes"),
        lambda operation, *, failed: asked.append((operation.value, failed)),
    )
    cluster.start()
    try:
        yield cluster, went, asked
    finally:
        await asyncio.to_thread(cluster.close, 5.0)
