"""CPU threads: as many as the cgroup allows, waiting passively.

Imported by `engine` before anything imports torch: the OpenMP runtime reads its waiting policy when it is loaded, and
its default, spinning, costs other processes on the same cores (and so this one) most of their time.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_CGROUP_V1_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def wait_passively() -> None:
    """Ask OpenMP not to spin, unless the operator chose otherwise."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def available_threads() -> int:
    """Whole cores that this process may use: its affinity, or the cgroup's quota where that is less. At least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota_cores()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def _quota_cores() -> float | None:
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        if _CGROUP_V1_QUOTA.exists():
            limit = int(_CGROUP_V1_QUOTA.read_text())
            return None if limit <= 0 else limit / int(_CGROUP_V1_PERIOD.read_text())
    except (OSError, ValueError):
        return None  # no readable quota is no quota
    return None
