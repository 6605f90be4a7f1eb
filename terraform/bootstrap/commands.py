"""Runs other programs, each within its time, or only says what it would run."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from terraform.bootstrap.signals import deferred


class BootstrapError(Exception):
    """Something did not work. The text says what, and what to do."""


class CommandFailedError(BootstrapError):
    """A command ended with another exit code than 0. `output` is what it printed."""

    def __init__(self, command: list[str], code: int, output: str) -> None:
        super().__init__(f"{shlex.join(command)}: exit code {code}\n{output.strip()}")
        self.output = output


class TooLateError(BootstrapError):
    """A command was not done in its time, and was ended."""


@dataclass(frozen=True, slots=True)
class Commands:
    """How commands are run.

    Attributes:
        dry_run: print what would change something, and run only what reads.
        environment: added to this process's; the cluster's kubeconfig, so that no other cluster can be meant.
    """

    dry_run: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def change(self, *command: str | Path, timeout_s: float) -> str:
        """Print the command, and run it unless this is a dry run. What it printed on standard output.

        Raises:
            BootstrapError: it failed, was late or is not installed.
        """
        words = [str(word) for word in command]
        print(f"{'would run' if self.dry_run else '+'} {shlex.join(words)}", flush=True)
        return "" if self.dry_run else self._run(words, timeout_s)

    def read(self, *command: str | Path, timeout_s: float = 60.0) -> str:
        """As `change`, for what changes nothing: also in a dry run."""
        return self._run([str(word) for word in command], timeout_s)

    def _run(self, command: list[str], timeout_s: float) -> str:
        process: subprocess.Popen[str] | None = None
        try:
            with deferred():
                process = self._start(command)
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            if process is not None:
                self._end(process)
            raise TooLateError(f"{shlex.join(command)}: not done after {timeout_s:g} s, and ended") from None
        except BaseException:
            if process is not None:
                self._end(process)
            raise
        if process.returncode:
            raise CommandFailedError(command, process.returncode, output + errors)
        return output

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        """In a session of its own, so that a terminal's interrupt comes to us alone, and we end it in our way."""
        try:
            return subprocess.Popen(
                command, env=os.environ | self.environment, text=True, encoding="utf-8", errors="backslashreplace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise BootstrapError(f"{command[0]} is not installed, or not on PATH") from None
        except OSError as error:
            raise BootstrapError(f"{command[0]} cannot be run: {error.strerror}") from None

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        """With its children, such as Terraform's provider. First politely: Terraform then writes its state down."""
        for number, wait_s in ((signal.SIGINT, 60.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(process.pid, number)
                # What it still says is read: on a full pipe it would wait, and not end.
                process.communicate(timeout=wait_s)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
