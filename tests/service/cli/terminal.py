"""A real terminal for a command under test: a pseudo-terminal that is the command's controlling one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"

# Makes the terminal on descriptor 0 the controlling one, so that Ctrl-C becomes SIGINT, and becomes the command.
_ADOPT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """One end of a terminal whose other end a command has."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.seen = b""  # everything that was ever shown
        self._from = 0

    def type(self, text: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, text if isinstance(text, bytes) else text.encode())

    def expect(self, text: str, timeout_s: float = 60.0) -> str:
        """Wait until `text` is shown after what was expected before; returns all that came in between."""
        wanted = text.encode()
        ends = time.monotonic() + timeout_s
        while (at := self.seen.find(wanted, self._from)) < 0:
            if not self._read(ends - time.monotonic()):
                raise AssertionError(f"never saw {text!r} after: {self.seen[self._from :].decode(errors='replace')!r}")
        between, self._from = self.seen[self._from : at], at + len(wanted)
        return between.decode(errors="replace")

    def at_prompt(self, prompt: str = "> ", timeout_s: float = 60.0) -> None:
        """Wait until the command shows its prompt and sleeps until a key is pressed.

        Between the two it cannot be interrupted at once: Python's readline looks at signals only when one comes while
        it waits, so a Ctrl-C in that instant, which no person can hit, is heard with the next key.
        """
        self.expect(prompt, timeout_s)
        ends = time.monotonic() + timeout_s
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < ends, "the command never waited for a key"
            os.sched_yield()

    def leave(self, timeout_s: float = 60.0) -> int:
        """Wait until the command has ended, reading what it still shows; its exit code."""
        ends = time.monotonic() + timeout_s
        while self._read(ends - time.monotonic()):
            pass
        return self.process.wait(max(0.1, ends - time.monotonic()))

    def _read(self, timeout_s: float) -> bool:
        """Take what is shown next; False at the end, or when nothing comes in time."""
        if timeout_s <= 0 or not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says EIO when the other end is closed
            return False
        self.seen += data
        return bool(data)


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run `command` (an absolute path and its arguments) on a new terminal; what still runs at the end is killed."""
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _ADOPT, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(environment),
            start_new_session=True,
        )
        os.close(slave)
        try:
            yield Terminal(master, process)
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(master)
