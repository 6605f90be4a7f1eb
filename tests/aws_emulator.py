"""An AWS on the loopback: ministack as a process, one empty account for each test that asks for one."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Made by `make aws-emulator`: an environment of its own, because it pins the AWS libraries to one version.
EMULATOR_PYTHON = Path(__file__).parents[1] / ".tools" / "ministack" / "bin" / "python"

READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 10.0
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class AwsAccount:
    """One account of the emulator. Nothing in it is seen from another.

    Attributes:
        url: the endpoint of every service.
        account_id: twelve digits. The emulator takes an access key of this form for the account's id.
    """

    url: str
    account_id: str
    region: str = REGION

    @property
    def environment(self) -> dict[str, str]:
        """What AWS tools and libraries read; add it to a child's environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.account_id,
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            # No profile of the person who runs the tests may add to this, or lead elsewhere.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self, service: str) -> Any:
        """A boto3 client. A call that the emulator lacks fails at once, in place of minutes of retries."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            region_name=self.region,
            endpoint_url=self.url,
            aws_access_key_id=self.account_id,
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 2}, s3={"addressing_style": "path"}),
        )


@dataclass(frozen=True, slots=True)
class AwsEmulator:
    """A running emulator.

    Attributes:
        log: the file with all that it printed.
    """

    url: str
    log: Path
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(100_000_000_001))

    def new_account(self, region: str = REGION) -> AwsAccount:
        """An account that nobody has used yet."""
        return AwsAccount(self.url, str(next(self._ids)), region)


@contextlib.contextmanager
def start_emulator(folder: Path) -> Iterator[AwsEmulator]:
    """Run the emulator on a free port of the loopback, with its files below `folder`, and stop it at the end.

    It speaks plain HTTP: only an OIDC issuer would need TLS, and pods get their roles through Pod Identity. An emulator
    that does not answer in time is an AssertionError with its log.
    """
    log = folder / "aws.log"
    # The socket listens before the process lives, so no port can be lost to another, and the first call simply waits.
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("wb") as output:
        port = int(listener.getsockname()[1])
        process = subprocess.Popen(
            [EMULATOR_PYTHON, "-m", "hypercorn", "ministack.app:app", "--bind", f"fd://{listener.fileno()}"],
            env=os.environ
            | {
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(port),
                "MINISTACK_HOST": "127.0.0.1",
                "TMPDIR": str(folder),
                "S3_DATA_DIR": str(folder / "s3"),
                "STATE_DIR": str(folder / "state"),
                "LOG_LEVEL": "WARNING",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
        )
    try:
        url = f"http://127.0.0.1:{port}"
        try:
            with urllib.request.urlopen(f"{url}/_ministack/health", timeout=READY_WITHIN_S) as answer:
                assert answer.status == 200
        except OSError as error:
            raise AssertionError(f"the AWS emulator does not answer: {error}\n{log.read_text()}") from error
        yield AwsEmulator(url, log)
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
