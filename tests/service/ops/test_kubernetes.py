"""How a pod finds its API, and what it says where there is none."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest
import trustme
from kubernetes.config import incluster_config

from service.app import App, StartError
from service.ops.cluster_events import Kind, Notice
from service.ops.kubernetes import ApiError, KubernetesApi, NoClusterError, in_cluster
from service.ops.pod_marks import DELETION_COST
from tests.contention import contention
from tests.fakes import FakeEngine
from tests.service.ops.kube_api import POD, KubeApi, configuration, hang, kube_api, pour, refuse, stream
from tests.service.ops.kube_api import in_cluster as in_a_cluster
from tests.service.running import quick, until

IN_A_POD: Any = {
    "kubernetes": True,
    "pod_name": POD.name,
    "pod_namespace": POD.namespace,
    "node_name": POD.node,
}


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a kubelet gives to a pod; the folder of its token."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    for name, content in (("TOKEN", "s3cret"), ("CERT", "PEM")):
        file = tmp_path / name.lower()
        file.write_text(content)
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(file))
    return tmp_path


def test_a_pod_finds_its_api_and_goes_there_through_no_proxy(pod: Path) -> None:
    found = in_cluster()
    KubernetesApi(found, POD)

    assert found.host == "https://10.96.0.1:443"
    assert found.ssl_ca_cert == str(pod / "cert")
    assert found.get_api_key_with_prefix("BearerToken") == "bearer s3cret"
    assert found.verify_ssl
    assert found.proxy is None
    assert found.retries is False


@asynccontextmanager
async def over_tls(signer: trustme.CA) -> AsyncIterator[tuple[KubeApi, int]]:
    """The API behind a certificate, as in a cluster, and its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer.issue_cert("127.0.0.1").configure_cert(context)
    async with KubeApi() as api:
        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(api))
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            yield api, runner.addresses[0][1]
        finally:
            await runner.cleanup()


async def test_it_shows_its_token_to_the_api_that_its_cluster_signed(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = trustme.CA()
    signer.cert_pem.write_to_path(pod / "cert")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    async with over_tls(signer) as (api, port):
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        facts = await asyncio.to_thread(KubernetesApi(in_cluster(), POD).mark, {DELETION_COST: "7"})
        assert api.annotations[DELETION_COST] == "7"
        assert api.asked[0].headers["Authorization"] == "bearer s3cret"
        assert (facts.uid, facts.started_s) == ("5ca1ab1e", api.started_s)


async def test_an_api_that_somebody_else_signed_gets_no_token(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trustme.CA().cert_pem.write_to_path(pod / "cert")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    async with over_tls(trustme.CA()) as (api, port):
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await asyncio.to_thread(KubernetesApi(in_cluster(), POD).mark, {DELETION_COST: "7"})
        assert not api.asked
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 403])
async def test_an_answer_without_end_is_read_no_further_than_8_mib(status: int) -> None:
    async with kube_api() as server:
        server.faults = {"patch": [pour(b"x" * (1 << 20), status=status)], "create": [pour(b"x" * (1 << 20))]}
        api = KubernetesApi(configuration(server), POD)
        with pytest.raises(ApiError, match="the answer goes on after 8 MiB"):
            await asyncio.to_thread(api.mark, {DELETION_COST: "7"})
        with pytest.raises(ApiError, match="the answer goes on after 8 MiB"):
            await asyncio.to_thread(api.tell, Notice(Kind.NODE_GOES, "note"), "uid")
        facts = await asyncio.to_thread(api.mark, {DELETION_COST: "7"})
    assert facts.uid == "5ca1ab1e", "the next request is none the worse"


async def test_an_answer_that_drips_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.kubernetes._ANSWER_WITHIN_S", 0.3)
    async with kube_api() as server:
        server.faults = {"patch": [pour(b" ", pause_s=0.02)]}
        with pytest.raises(ApiError, match="the answer is not over after 0 s"):
            await asyncio.to_thread(KubernetesApi(configuration(server), POD).mark, {DELETION_COST: "7"})


async def test_a_watch_of_empty_lines_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.kubernetes._LONGEST_WATCH", 4 << 20)
    async with kube_api() as server:
        server.faults = {"watch": [pour(b"\n" * (1 << 20))]}
        watch = KubernetesApi(configuration(server), POD).watch_node(None)
        with pytest.raises(ApiError, match="the answer goes on after 4 MiB"):
            await asyncio.to_thread(list, watch)


async def test_a_line_of_a_watch_may_come_in_pieces_and_has_an_end() -> None:
    async with kube_api() as server:
        change = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "%d"}}}'
        server.faults = {"watch": [stream(change % 7, b"", change % 8), pour(b"x" * (1 << 20))]}
        api = KubernetesApi(configuration(server), POD)
        assert await asyncio.to_thread(list, api.watch_node("6")) == [(None, "6"), (None, "7"), (None, "8")]
        with pytest.raises(ApiError, match="a change of the node that has no end"):
            await asyncio.to_thread(list, api.watch_node("8"))


async def test_an_end_waits_little_for_an_api_that_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.kubernetes.REQUEST_TIMEOUT_S", (2.0, 40.0))
    async with kube_api() as server:
        server.faults = {"patch": [refuse(500), *[hang(server)] * 9]}
        async with in_a_cluster(server) as (cluster, _, asked):
            await until(lambda: any(failed for _, failed in asked))
            began_s = time.monotonic()
            await asyncio.to_thread(cluster.close, 60.0)
            assert time.monotonic() - began_s < 4.0 * contention()


def test_a_pod_without_a_token_is_told_what_to_set(pod: Path) -> None:
    (pod / "token").unlink()

    with pytest.raises(NoClusterError, match="automountServiceAccountToken: true"):
        in_cluster()


async def test_outside_of_a_pod_the_start_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    app = App(quick(**IN_A_POD), FakeEngine().opener())

    with pytest.raises(StartError, match="--kubernetes: this process is in no pod") as caught:
        await app.start()
    assert "\n" not in str(caught.value)


async def test_without_the_package_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.ops.cluster", None)
    app = App(quick(**IN_A_POD), FakeEngine().opener())

    with pytest.raises(StartError, match=r"pip install 'soloist\[kubernetes\]'"):
        await app.start()
