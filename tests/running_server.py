"""`soloist serve` as a process, for tests that want what a user gets."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

READY_WITHIN_S = 100.0
STOPPED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that said SERVING.

    Attributes:
        target: HOST:PORT of its gRPC port.
        metrics_url: its Prometheus page.
        log: the file with all that it printed.
    """

    target: str
    metrics_url: str
    log: Path
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def start_server(*flags: str, log: Path) -> Iterator[RunningServer]:
    """Run `soloist serve FLAGS` on free ports of the loopback, wait until it is healthy, and stop it at the end.

    A server that ends or does not become healthy in time is an AssertionError with the end of its log.
    """
    with launch_server(*flags, log=log) as server:
        await_serving(server.target, server.process, log)
        yield server


@contextlib.contextmanager
def launch_server(*flags: str, log: Path) -> Iterator[RunningServer]:
    """As `start_server`, without the wait: its port is not open yet, and then it loads."""
    port, metrics_port = free_ports(2)
    target = f"127.0.0.1:{port}"
    addresses = ["--listen", target, "--metrics-listen", f"127.0.0.1:{metrics_port}"]
    # Nobody sends new turns while a test stops its server, so it need not wait for load balancers to notice.
    command = [sys.executable, "-m", "service", "serve", *addresses, "--propagation-s", "0", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield RunningServer(target, f"http://127.0.0.1:{metrics_port}/metrics", log, process)
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """So many ports of the loopback that nobody listens on now, and that nobody else is given.

    They lie below those that the system gives to connections and to port 0, so that none takes one meanwhile; each
    process of a run in several has every Nth of them, from a place of its own on.
    """
    found: list[int] = []
    while len(found) < count:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def _ports() -> Iterator[int]:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(_LOWEST_PORT + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), _LOWEST_EPHEMERAL, workers)
    place = random.randrange(len(mine))  # another run on this machine begins elsewhere
    while True:
        yield mine[place % len(mine)]
        place += 1


_LOWEST_PORT = 15_000
_LOWEST_EPHEMERAL = 32_000
_PORTS = _ports()


def await_serving(target: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until `target` says SERVING. An AssertionError with the end of the log, where `process` ends first or is late.

    `log` is a file, or anything else where nothing is logged to one.
    """
    with grpc.insecure_channel(target) as channel:
        try:
            # wait_for_ready: the port may not be open yet; the channel knocks until it is.
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=READY_WITHIN_S, wait_for_ready=True
            )
            # A server that ends is no server to wait for.
            threading.Thread(target=lambda: (process.wait(), watch.cancel()), daemon=True).start()
            for answer in watch:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    watch.cancel()
                    return
            reason = "ended its health watch"
        except grpc.RpcError as error:
            reason = f"did not become healthy: {error.code().name}"
    tail = log.read_text(errors="replace")[-4000:] if log.is_file() else ""
    raise AssertionError(f"the server (exit code {process.poll()}) {reason}\n{tail}")
