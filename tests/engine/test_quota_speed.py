"""A pod with fewer CPUs than its host has cores is as fast as so many cores are."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contention import contention

V1 = Path("/sys/fs/cgroup/cpu")
V2 = Path("/sys/fs/cgroup")
CPUS = max(1, min(2, len(os.sched_getaffinity(0)) - 1))
BENCH = (sys.executable, "-m", "service", "bench", "decode", "--device", "cpu", "--new-tokens", "48", "--turns", "3")
PERIOD_US = 100_000
ROUNDS = 3


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a quota of CPUS, as a container runtime makes it."""
    if len(os.sched_getaffinity(0)) <= CPUS:
        pytest.skip("needs more cores than the quota has")
    v1 = (V1 / "cpu.cfs_quota_us").exists()
    folder = (V1 if v1 else V2) / f"soloist-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        if v1:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(CPUS * PERIOD_US))
        else:
            (folder / "cpu.max").write_text(f"{CPUS * PERIOD_US} {PERIOD_US}")
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    yield folder
    folder.rmdir()


def under_quota(group: Path) -> dict[str, float]:
    """Within the group, which the process sees as the root, as in a container."""
    seen = V1 if group.parent == V1 else V2
    script = f'echo $$ > {group}/cgroup.procs && mount --bind {group} {seen} && exec "$@"'
    return bench("unshare", "--mount", "sh", "-c", script, "sh")


def bench(*before: str) -> dict[str, float]:
    run = subprocess.run([*before, *BENCH], check=True, capture_output=True, text=True, timeout=300)
    said = json.loads(run.stdout.splitlines()[-1])
    return {"tokens_per_s": said["results"][0]["tokens_per_s"], "threads": said["device"]["threads"]}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_k8s_08_a_quota_is_as_fast_as_so_many_cores(group: Path, embedded_model: Path) -> None:
    # By turns, so that what else the machine does is in both.
    quota, cores = [], []
    for _ in range(ROUNDS):
        quota.append(under_quota(group))
        cores.append(bench("taskset", "--cpu-list", ",".join(map(str, range(CPUS)))))
    assert {run["threads"] for run in quota + cores} == {CPUS}
    ratio = statistics.median(run["tokens_per_s"] for run in quota) / statistics.median(
        run["tokens_per_s"] for run in cores
    )
    print(f"{CPUS} CPUs by quota: {ratio:.2f} of as many cores; contention {contention():.2f}")
    assert ratio >= 0.8
