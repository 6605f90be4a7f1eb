"""Threads follow the cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import threads


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 8), ("x", 8)],
)
def test_k8s_08_threads_are_the_cgroups_quota_not_the_hosts_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    cpu_max = tmp_path / "cpu.max"
    cpu_max.write_text(quota)
    monkeypatch.setattr(threads, "_CGROUP_V2", cpu_max)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.available_threads() == expected


def test_openmp_waits_passively_before_torch_is_imported() -> None:
    code = "import engine, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == ["PASSIVE", "False"]
