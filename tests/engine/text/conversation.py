"""Messages as tests write them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """One message."""

    role: str
    content: str
    name: str | None = None


def user(content: str) -> Said:
    """A user's message."""
    return Said("user", content)


def system(content: str) -> Said:
    """A system message."""
    return Said("system", content)


def assistant(content: str) -> Said:
    """An assistant's message."""
    return Said("assistant", content)
