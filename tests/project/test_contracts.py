"""The import contracts hold, and they fail when somebody breaks a wall."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

BREACHES = [
    ("engine/params.py", "import service.events", "service-over-engine"),
    ("engine/kernels/plain.py", "import engine.engine", "engine-layers"),
    ("engine/config.py", "import grpc", "engine-is-no-service"),
    ("engine/text/tokenizer.py", "import torch", "text-without-torch"),
    ("service/scheduler.py", "import time", "pure-parts"),
    ("service/session.py", "import asyncio", "pure-parts"),
    ("service/scheduler.py", "import service.stage", "service-layers"),
    ("service/conversation.py", "from soloist.v1 import chat_pb2", "proto-at-the-edge"),
    ("service/client/chat.py", "import engine", "client-alone"),
    ("service/client/chat.py", "import service.app", "client-alone"),
    ("service/stage.py", "import prometheus_client", "one-file-for-metrics"),
    ("service/gateway/answering.py", "import engine", "gateway-over-client"),
    ("service/gateway/app.py", "import service.settings", "gateway-over-client"),
    ("service/client/chat.py", "import starlette", "one-place-for-the-web"),
]


def _lint(folder: Path, contract: str | None = None) -> subprocess.CompletedProcess[str]:
    lint = Path(sys.executable).with_name("lint-imports")
    command = [str(lint), "--config", "pyproject.toml", "--no-cache"]
    # The copy must be read, not the installed project: the working folder comes first.
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        command + (["--contract", contract] if contract else []),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The two packages and their contracts, to be broken."""
    for package in ("engine", "service"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_all_contracts_hold(copy: Path) -> None:
    done = _lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("file", "line", "contract"), BREACHES)
def test_a_breach_is_found(copy: Path, file: str, line: str, contract: str) -> None:
    broken = copy / file
    broken.write_text(f"{broken.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    done = _lint(copy, contract)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout, done.stdout + done.stderr
