"""Fixtures of the Terraform tests: the tool, and copies of roots to run it in."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def terraform(require_tool: Callable[[str], str]) -> str:
    """The path of the `terraform` command."""
    return require_tool("terraform")
