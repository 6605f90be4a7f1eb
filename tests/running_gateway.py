"""`soloist gateway` as a process, for tests that want what a user gets."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.running_server import STOPPED_WITHIN_S, free_ports

READY_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that is ready.

    Attributes:
        url: without a slash at its end.
        log: the file with all that it printed.
    """

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def start_gateways(count: int, *flags: str, folder: Path) -> Iterator[list[RunningGateway]]:
    """So many gateways on free ports of the loopback, ready; gone at the end. They start side by side."""
    with contextlib.ExitStack() as stack:
        gateways = []
        for number, port in enumerate(free_ports(count)):
            log = folder / f"gateway-{port}-{number}.log"
            command = [sys.executable, "-m", "service", "gateway", "--listen", f"127.0.0.1:{port}"]
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [*command, "--propagation-s", "0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_stop, process)
            gateways.append(RunningGateway(f"http://127.0.0.1:{port}", log, process))
        for gateway in gateways:
            _await_ready(gateway)
        yield gateways


def _await_ready(gateway: RunningGateway) -> None:
    ends_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < ends_s and gateway.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{gateway.url}/readyz").status_code == 200:
                return
        time.sleep(0.05)  # its port may not be open yet, and nothing tells
    tail = gateway.log.read_text(errors="replace")[-4000:]
    raise AssertionError(f"the gateway (exit code {gateway.process.poll()}) did not become ready\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
