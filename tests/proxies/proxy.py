"""Envoy, haproxy and nginx in front of two replicas, as processes on the loopback."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests import http2
from tests.proxies.replicas import Replica
from tests.running_server import free_ports

HERE = Path(__file__).parent
READY_WITHIN_S = 60.0
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

COMMANDS: dict[str, tuple[str, ...]] = {
    "envoy": ("-c", "CONFIG", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"),
    "haproxy": ("-db", "-f", "CONFIG"),
    "nginx": ("-c", "CONFIG", "-p", "FOLDER", "-e", "stderr"),
}
CONFIGS = {"envoy": "envoy.yaml", "haproxy": "haproxy.cfg", "nginx": "nginx.conf"}


@contextlib.contextmanager
def proxy(name: str, tool: Callable[[str], str], replicas: list[Replica], folder: Path) -> Iterator[str]:
    """A proxy of two replicas that serve; gives its HOST:PORT. `tool` finds a program by its name."""
    (port,) = free_ports(1)
    first, second = replicas
    config = folder / CONFIGS[name]
    check = http2.opening() + http2.call(1, "/grpc.health.v1.Health/Check", b"")
    answer = SERVING.SerializeToString()
    config.write_text(
        # nginx's own variables begin with a dollar too.
        Template((HERE / config.name).read_text(encoding="utf-8")).safe_substitute(
            PORT=port,
            FIRST=first.port,
            SECOND=second.port,
            FOLDER=folder,
            HEALTH_REQUEST=check.hex(),
            HEALTH_SERVING=(b"\x00" + len(answer).to_bytes(4, "big") + answer).hex(),
        ),
        encoding="utf-8",
    )
    places = {"CONFIG": str(config), "FOLDER": str(folder)}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [tool(name), *(places.get(word, word) for word in COMMANDS[name])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        target = f"127.0.0.1:{port}"
        _await_serving(target, process, log)
        yield target
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_serving(target: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_s = time.monotonic() + READY_WITHIN_S
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while process.poll() is None and time.monotonic() < ends_s:
            # A proxy that listens may not have found its replicas yet.
            with contextlib.suppress(grpc.RpcError):
                if stub.Check(health_pb2.HealthCheckRequest(), timeout=10, wait_for_ready=True) == SERVING:
                    return
            time.sleep(0.05)
    tail = log.read_text(errors="replace")[-4000:]
    raise AssertionError(f"{target} (exit code {process.poll()}) gives no way to a replica\n{tail}")
