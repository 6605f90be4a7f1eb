"""The C module of Triton's driver, compiled when an image is built, for machines that have no compiler.

Triton makes the kernels' machine code by itself, but compiles one small module in C at its first launch, with the
machine's compiler. `python -m engine.kernels.prebuilt` compiles it ahead, into the Python environment; `use` hands it
out where it is there. It is named after its source, so another Triton never gets this one's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix) / "lib" / "soloist" / "triton"
_MODULE = "cuda_utils"
_LIBCUDA = "libcuda.so.1"


def use(folder: Path = FOLDER) -> bool:
    """Have Triton take the module from `folder`, if it is there; whether it is."""
    import triton

    built = folder / _name(_source())
    if not built.is_file():
        return False
    knobs: Any = triton.knobs
    if not isinstance(knobs.build.impl, _Handout):
        knobs.build.impl = _Handout(built, knobs.build.impl)
        # Triton looks for the driver's library before it links, and nothing is linked.
        knobs.nvidia.libcuda_path = knobs.nvidia.libcuda_path or str(folder)
    return True


class _Handout:
    """Triton's hook for builds: the prebuilt module for its source, and for any other a sentence."""

    def __init__(self, built: Path, other: Callable[..., str] | None) -> None:
        self._built, self._other = built, other

    def __call__(self, name: str, source: str, *rest: Any) -> str:
        if _name(Path(source), name) == self._built.name:
            return str(self._built)
        if self._other is not None:
            return self._other(name, source, *rest)
        raise RuntimeError(
            f"Triton wants to compile {name}, which this environment holds no prebuilt module for; "
            "run `python -m engine.kernels.prebuilt` anew where a C compiler is"
        )


def build(folder: Path = FOLDER) -> Path:
    """Compile the module into `folder`. Needs `gcc` and Python's headers, neither a GPU nor its driver."""
    source = _source()
    built = folder / _name(source)
    folder.mkdir(parents=True, exist_ok=True)
    headers = source.parent / "include"
    with tempfile.TemporaryDirectory() as scratch:
        # Only the name of the driver's library goes into the module; an empty library has it.
        stub = Path(scratch) / _LIBCUDA
        _compile("-shared", f"-Wl,-soname,{_LIBCUDA}", "-x", "c", "/dev/null", "-o", str(stub))
        made = Path(scratch) / built.name
        _compile(
            *(str(source), "-O3", "-shared", "-fPIC", "-Wno-psabi"),
            *(f"-I{headers}", f"-I{sysconfig.get_paths()['include']}"),
            # Some linkers leave out a library that gives them nothing, and the empty one does not.
            *(f"-L{scratch}", "-Wl,--no-as-needed", f"-l:{_LIBCUDA}", "-o", str(made)),
        )
        shutil.copy(made, built)
    return built


def launchers_are_compiled() -> bool:
    """Whether this Triton compiles a launcher in C for each kernel too, as it did before 3.7."""
    return (_source().parent / "driver.py").read_text(encoding="utf-8").count("compile_module_from_src(") > 1


def _compile(*arguments: str) -> None:
    done = subprocess.run(["gcc", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"gcc cannot compile Triton's module; it and Python's headers are needed:\n{done.stderr[:2000]}"
        )


def _source() -> Path:
    """The module's source in the installed Triton."""
    found = importlib.util.find_spec("triton.backends.nvidia")
    if found is None or found.origin is None:
        raise RuntimeError("triton is not installed, or has no NVIDIA backend")
    return Path(found.origin).parent / "driver.c"


def _name(source: Path, module: str = _MODULE) -> str:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    return f"{module}-{digest}{sysconfig.get_config_var('EXT_SUFFIX')}"


if __name__ == "__main__":
    if launchers_are_compiled():
        sys.exit("this Triton compiles a launcher for each kernel at run time; take 3.7 or newer")
    print(build())
