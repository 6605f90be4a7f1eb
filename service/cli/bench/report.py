"""What every measurement prints: a line about the device, a table for people, and a last line of JSON."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from service.cli.bench.table import table

if TYPE_CHECKING:
    from engine.bench.opening import DeviceFacts


def report(
    measurement: str,
    facts: DeviceFacts,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    **document: Any,
) -> None:
    """Print it. `notes` are sentences under the table; `document` is what the JSON holds beside the device."""
    print(f"{facts.name}, reads {facts.read_bytes_per_s / 1e9:.1f} GB/s ({facts.reader}, this run)")
    print(table(heads, rows))
    for note in notes:
        print(note)
    shared = {"measurement": measurement, "python": platform.python_version(), "device": dataclasses.asdict(facts)}
    print(json.dumps({**shared, **document}))


def milliseconds(seconds: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def share(value: float | None) -> str:
    """Per cent with one decimal, or a dash."""
    return "-" if value is None else f"{value:.1%}"


def count(value: float | None) -> str:
    """A whole number, or a dash."""
    return "-" if value is None else f"{value:.0f}"
