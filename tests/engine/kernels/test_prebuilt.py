"""Triton's C module comes ready made: no compiler is asked for where kernels run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kernels import prebuilt
from tests.conftest import absent

# In a process of its own, without any compiler on its PATH: Triton keeps what it loaded.
_LOAD = """
import sys
from pathlib import Path
from engine.kernels import prebuilt

print(prebuilt.use(Path(sys.argv[1])))
from triton.backends.nvidia.driver import CudaUtils
print(callable(CudaUtils().load_binary))
"""


def test_tritons_module_is_taken_ready_made_where_no_compiler_is(
    tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    gcc = require_tool("gcc")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        absent("Python's headers are not installed")
    built = prebuilt.build(tmp_path / "prebuilt")
    # A driver's library with the names that the module asks for: there is none here, and none is called.
    names = sorted(set(re.findall(r"\bcu[A-Z]\w+", prebuilt._source().read_text())))
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    code = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    subprocess.run([gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=code, text=True, check=True)
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "LD_LIBRARY_PATH": str(library.parent),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-c", _LOAD, str(built.parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["True", "True"]


def test_where_nothing_is_prebuilt_triton_is_left_alone(tmp_path: Path) -> None:
    import triton

    before = triton.knobs.build.impl
    assert not prebuilt.use(tmp_path)
    assert triton.knobs.build.impl is before


def test_another_source_gets_a_sentence_and_not_the_wrong_module(tmp_path: Path) -> None:
    other = tmp_path / "driver.c"
    other.write_text("int another;")
    with pytest.raises(RuntimeError, match="no prebuilt module for"):
        prebuilt._Handout(tmp_path / "cuda_utils-0.so", None)("cuda_utils", str(other), str(tmp_path), [], [], [])
