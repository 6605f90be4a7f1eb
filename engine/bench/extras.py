"""Packages that only a measurement needs: imported where they are there, one sentence where they are not."""

from __future__ import annotations

import importlib
from types import ModuleType

from engine.errors import EngineError


class MissingExtraError(EngineError):
    """A measurement needs a package that is not installed."""


def need(module: str, for_what: str, install: str) -> ModuleType:
    """Import `module`, or say how to get it. Raises MissingExtraError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{for_what} needs the package {module}, which cannot be imported here ({error}); {install}"
        ) from error
