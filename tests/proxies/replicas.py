"""Replicas of one server as processes that tests kill, drain and start again, each always on its own port."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.running_server import await_serving

ENDS_WITHIN_S = 60.0
# Below the ports that the system gives to outgoing connections: nobody takes one while its replica is away.
_PORTS = range(15_000, 30_000)


class Replica:
    """`soloist serve` on one port, again and again.

    Attributes:
        target: its HOST:PORT.
        log: the file with all that it printed, of all its lives.
    """

    def __init__(self, log: Path, *flags: str) -> None:
        self.log = log
        self.port = _a_port()
        self.target = f"127.0.0.1:{self.port}"
        self._flags = ("--listen", self.target, "--metrics-listen", "off", *flags)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start it first"
        return self._process

    def launch(self) -> None:
        """Start the process; `await_serving` waits for it."""
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "service", "serve", *self._flags]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def await_serving(self) -> None:
        """Until it says SERVING."""
        await_serving(self.target, self.process, self.log)

    def start(self) -> None:
        """Launch and wait."""
        self.launch()
        self.await_serving()

    def kill(self) -> None:
        """Hard: it says goodbye to nobody."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and it says nothing more."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self.process.send_signal(signal.SIGCONT)

    def drain(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.process.wait(ENDS_WITHIN_S)

    def end(self) -> None:
        """Whatever its state."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _a_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"100 ports of {_PORTS} are taken")
