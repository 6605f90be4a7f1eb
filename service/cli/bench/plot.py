"""A picture of a decode run: how much of the memory's read bandwidth each row reached."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from service.cli.errors import CommandError, UsageError

_BAR_INCHES = 0.55


def require_plot(path: Path) -> None:
    """Refuse before anything is measured.

    Raises UsageError where the name ends otherwise or its folder is missing, CommandError without matplotlib.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot writes a PNG; give it a name that ends in .png, not {str(path)!r}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {str(path.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib; install it with: pip install 'soloist[bench]'")


def draw(path: Path, device: str, shares: Sequence[tuple[str, float]]) -> None:
    """Write a PNG with one bar for each (name, share of the read bandwidth)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display or any global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + _BAR_INCHES * len(shares)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, values = [name for name, _ in shares], [100 * value for _, value in shares]
    bars = axes.barh(range(len(names)), values, color="#3b6ea5")
    axes.bar_label(bars, fmt="%.1f%%", padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlim(0, max(110.0, *values) * 1.05)
    axes.set_xlabel("share of the read bandwidth measured in the same run, %")
    axes.set_title(f"One decode step, {device}", fontsize=10)
    figure.savefig(path, dpi=150)
