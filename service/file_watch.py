"""Whether files have changed, for what is read again while the server runs: keys and certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_EVERY_S = 1.0  # a look is a system call a file, and secrets may lie on a network


class FileWatch:
    """Some files that belong together. A look is taken at most every LOOK_EVERY_S; a link that moves is a change."""

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._looked_s = clock()
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether they are other files, or other in time or size, than at the last look."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def again(self) -> None:
        """Let the next look find a change: what was read was not whole."""
        self._seen = ()

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()  # of what a link leads to: Kubernetes replaces secrets by moving a link
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
