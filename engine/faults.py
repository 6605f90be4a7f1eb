"""Which failures of the device end one turn, and which end the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import EngineError, FatalDeviceError, OutOfDeviceMemoryError, StepError

# Errors of the driver or of a kernel leave the context unusable, except those that are about capture.
_CAPTURE_MARKS = ("capture", "cudaErrorStreamCapture")


def is_fatal(error: BaseException) -> bool:
    """Whether the device context is lost: a CUDA error other than memory or capture."""
    if isinstance(error, FatalDeviceError):
        return True
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    is_cuda = isinstance(error, torch.AcceleratorError) or "CUDA error" in text or "CUDA driver error" in text
    return is_cuda and not any(mark in text for mark in _CAPTURE_MARKS)


@contextmanager
def named(work: str = "a step") -> Iterator[None]:
    """Turn what torch raises into the engine's errors, which say what `work` it was."""
    try:
        yield
    except EngineError:
        raise
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemoryError(f"{work} failed: the device has no memory left: {first_line(error)}") from error
    except Exception as error:
        if is_fatal(error):
            raise FatalDeviceError(f"{work} failed and the device is lost: {first_line(error)}") from error
        raise StepError(f"{work} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type's name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
