"""Every kernel compiles for the devices that users rent, without a GPU, and without Hopper's instructions before it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

# In a process of its own: here Triton may be in its interpreter, where nothing is compiled.
_COMPILE = """
import re, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
import triton.compiler

capability, name = int(sys.argv[1]), sys.argv[2]

class Driver:  # enough of a device to compile for
    launcher_cls = None
    utils = None
    def get_current_target(self): return GPUTarget("cuda", capability, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_device_interface(self): return torch.cuda

driver.set_active(Driver())
compile_kernel, texts = triton.compiler.compile, []

def compile_and_keep(*args, **kwargs):
    compiled = compile_kernel(*args, **kwargs)
    texts.append(compiled.asm["ptx"])
    return compiled

triton.compiler.compile = compile_and_keep
from engine.kernels.launch import Launch
from tests.benchmarks import decode_step
from engine.kernels.tuning import tuning_for

Launch.on = classmethod(lambda cls, device: cls(dependent=capability >= 90, processors=100))
for kernel in (*decode_step.KERNELS, 256, 4096):
    decode_step._compile(decode_step.SHAPES[name], kernel, tuning_for(""))
hopper = sum(bool(re.search(r"griddepcontrol|cp[.]async[.]bulk|wgmma", text)) for text in texts)
print(len(texts), hopper)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("capability", "shape"),
    [
        (80, "smollm2-135m"),
        (90, "smollm2-135m"),
        *(
            pytest.param(capability, shape, marks=pytest.mark.slow)
            for capability, shape in itertools.product((80, 86, 89, 90), ("smollm2-135m", "qwen3-0.6b"))
        ),
    ],
)
def test_every_kernel_compiles(capability: int, shape: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(capability), shape],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels, with_hopper = map(int, done.stdout.split())
    assert kernels == 9  # five products, the norm before the head, the pick, and two forms of attention
    assert with_hopper == (9 if capability >= 90 else 0)
