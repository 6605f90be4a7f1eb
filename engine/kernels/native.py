"""Whether compiled steps can be had on this machine, and their compilation, ahead of use and beside other work."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path

_NEEDED = {"x86_64": ("f16c", "fma"), "aarch64": ("fp16",)}  # without them half floats would want a library


def why_not() -> str | None:
    """Why steps cannot be compiled here; None where they can."""
    if sys.platform != "linux":
        return f"compiled steps use Linux's semaphores; this is {sys.platform}"
    flags = _NEEDED.get(os.uname().machine)
    if flags is None:
        return f"compiled steps are for x86_64 and aarch64; this is {os.uname().machine}"
    try:
        import llvmlite.binding as llvm
        import numba  # noqa: F401
    except ImportError as error:
        return f"Numba cannot be imported ({error})"
    has = llvm.get_host_cpu_features()
    missing = [flag for flag in flags if not has.get(flag, os.uname().machine == "aarch64")]
    return f"this processor lacks {missing[0]}" if missing else None


class Compilation:
    """Compiles in a thread of its own. Start it before the weights are read; what it makes is kept for the next start.

    Where no folder can be written the result is not kept, and the next start compiles again.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, name="compile-step", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is done; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _compile(self) -> None:
        try:
            use_cache()
            from engine.kernels import quantised

            quantised.compile_step()
        except BaseException as error:
            self._error = error


def use_cache() -> None:
    """Let Numba keep machine code in a folder that is this user's alone, named after the code it was made from."""
    from numba import config

    if config.CACHE_DIR:
        return  # the operator chose one
    folder = cache_folder(Path(tempfile.gettempdir()))
    if folder is not None:
        config.CACHE_DIR = str(folder)


def cache_folder(parent: Path) -> Path | None:
    """A private folder below `parent`, or None: what lies in it is run, so nobody else may write to it."""
    own = parent / f"soloist-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if own.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return None
        folder = own / f"numba-{_digest_of_code()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for name in ("lanes.py", "quantised.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]
