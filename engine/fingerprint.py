"""The numerics fingerprint: equal where the same request gives the same bits, so that an answer can go on elsewhere."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

# What computes. Another version of it may round in another way, so its text counts, like the versions of libraries.
_COMPUTING = ("cache.py", "model.py", "prefill.py", "rope.py", "sampler.py", "shapes.py", "stepper.py", "toolkit.py",
              "turn.py", "weights.py", "kernels/*.py", "generic/*.py")  # fmt: skip


def fingerprint(model: tuple[object, ...], sizes: tuple[int, ...], device: torch.device) -> str:
    """32 hexadecimal digits over all that a bit of an answer depends on.

    `model` names weights, architecture, precision and kernels; `sizes` are the context's, which bounds buckets and
    answers, and the prefill chunk's.
    """
    of_device = _of_cuda(device) if device.type == "cuda" else _of_cpu()
    facts = repr((model, sizes, *of_device, _digest_of_code()))
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _of_cuda(device: torch.device) -> Iterator[object]:
    yield torch.__version__
    yield torch.version.cuda
    yield torch.cuda.get_device_name(device)
    yield torch.cuda.get_device_capability(device)
    try:
        import triton
    except ImportError:
        return
    yield triton.__version__


def _of_cpu() -> Iterator[object]:
    """Libraries choose their loops by the processor and split sums by the number of threads."""
    yield torch.__version__
    yield platform.machine()
    yield _processor()
    yield torch.backends.cpu.get_cpu_capability()
    yield torch.get_num_threads()
    for package in ("numba", "llvmlite"):  # they compile the quantised step
        yield importlib.util.find_spec(package) and importlib.metadata.version(package)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _digest_of_code() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for pattern in _COMPUTING:
        for path in sorted(root.glob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
