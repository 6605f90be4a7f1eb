"""Numbers on the command line, with their bounds: argparse puts the flag's name before what these say."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

_MOST_DIGITS = 20


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """A whole number in [low, high]."""

    def parse(value: str) -> int:
        digits = value[1:] if value[:1] in ("-", "+") else value
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS and low <= int(value) <= high:
            return int(value)
        raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}; got {_shown(value)}")

    return parse


def number(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    """A number in [low, high], or with `above` in (low, high]."""

    def parse(value: str) -> float:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if low <= found <= high and not (above and found == low):
            return found
        lowest = f"above {low:g} and at most" if above else f"from {low:g} to"
        raise argparse.ArgumentTypeError(f"must be a number {lowest} {high:g}; got {_shown(value)}")

    return parse


def _shown(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:40] + "...")
