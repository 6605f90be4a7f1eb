"""How busy the machine is with other things, so that a limit in seconds means the same beside neighbours."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_CHUNK: Final = bytes(1 << 20)  # hashed without the interpreter's lock
_WORK_S: Final = 0.15  # of CPU, for each core


def in_time(took_s: float, limit_s: float) -> bool:
    """Whether `took_s` is within a limit that is meant for a machine with nothing else to do."""
    return took_s <= limit_s or took_s <= limit_s * contention()


def contention() -> float:
    """How many times longer work on every core takes now than it would alone: 1 where nobody else computes.

    Wall time over this process's own CPU time: what is measured is the wait for cores, not how fast they are. A limit
    that is multiplied with it still fails when the code under test takes more of the CPU.
    """
    cores = len(os.sched_getaffinity(0))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(lambda _: _work(), range(cores)))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return max(1.0, wall_s * cores / cpu_s)


def _work() -> None:
    digest = hashlib.sha256()
    ends_s = time.thread_time() + _WORK_S
    while time.thread_time() < ends_s:
        digest.update(_CHUNK)
