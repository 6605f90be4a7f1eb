"""Kernels run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    # Read by Triton when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from tests.conftest import absent


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    from triton import knobs

    if not knobs.runtime.interpret or "triton" not in sys.modules:
        absent("Triton was imported before its interpreter was asked for")
    return torch.device("cpu")
