"""What the chart renders, run: the server on its settings file and keys, kubelet's probes, the turn of `helm test`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.helm.rendering import CHART, Document, render, server, settings_file, the
from tests.running_server import RunningServer, free_ports, start_server


@dataclass(frozen=True, slots=True)
class Release:
    """A rendered release of which the server runs on this machine.

    Attributes:
        etc: what is mounted at /etc/soloist in its pods.
        probes: address of the port `probes`.
    """

    documents: list[Document]
    etc: Path
    server: RunningServer
    probes: str

    def here(self, argument: str) -> str:
        """An argument of a container, with the paths and addresses of this machine."""
        target = "soloist.soloist.svc:50051"
        return argument.replace("/etc/soloist", str(self.etc)).replace(target, self.server.target)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, embedded_model: Path) -> Iterator[Release]:
    documents = render(files=[CHART / "ci" / "cpu-demo-values.yaml"])
    etc = tmp_path_factory.mktemp("etc")
    secret = the(documents, "Secret")["stringData"]
    for name, content in {
        "soloist.yaml": settings_file(documents).replace("/etc/soloist", str(etc)),
        "keys/keys.yaml": secret["keys.yaml"],
        "client/key": secret["key"],
    }.items():
        (etc / name).parent.mkdir(exist_ok=True)
        (etc / name).write_text(content, encoding="utf-8")
    [port] = free_ports(1)
    arguments = [word.replace("/etc/soloist", str(etc)) for word in server(documents)["args"]]
    assert arguments[0] == "serve"
    # Ports of its own, since the chart's may be taken here; all else is the file's.
    with start_server(*arguments[1:], "--probe-listen", f"127.0.0.1:{port}", log=etc / "log") as running:
        yield Release(documents, etc, running, f"127.0.0.1:{port}")


def test_the_turn_of_helm_test_is_answered(release: Release) -> None:
    [container] = the(release.documents, "Pod")["spec"]["containers"]
    words = [release.here(word) for word in container["args"]]
    done = subprocess.run(
        [sys.executable, "-m", "service", *words], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "tokens" in done.stderr, "--stats prints the figures of the turn"


def test_promise_20_without_the_key_nobody_is_answered(release: Release) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service", "chat", "--target", release.server.target, "--prompt", "Hi"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert "key" in done.stderr


@pytest.mark.parametrize("question", ["startup", "readiness", "liveness"])
def test_kubelets_probes_are_answered_without_a_key(release: Release, question: str) -> None:
    probe = server(release.documents)[f"{question}Probe"]["grpc"]
    with grpc.insecure_channel(release.probes) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=probe["service"]), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
