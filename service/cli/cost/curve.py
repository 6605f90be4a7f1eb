"""The curve of dollars a month over answers a day: what is drawn, and the drawing."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from service.cli.cost.bill import Traffic
from service.cli.errors import CommandError, UsageError

SUFFIXES = (".png", ".svg")
_POINTS_PER_DECADE = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One way to serve: its name, a colour, and dollars a month for a traffic. Rivals are dashed."""

    name: str
    colour: str
    dollars: Callable[[Traffic], float]
    rival: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        traffic: all but how many answers a day, which is the axis from `least` to `most`.
        mark: answers a day to point at, and what is said there; None for no mark.
    """

    title: str
    traffic: Traffic
    lines: Sequence[Line]
    least: float
    most: float
    mark: tuple[float, str] | None = None

    def answers(self) -> list[float]:
        """The points of the axis."""
        steps = round(_POINTS_PER_DECADE * math.log10(self.most / self.least))
        return [self.least * (self.most / self.least) ** (step / steps) for step in range(steps + 1)]

    def dollars(self, line: Line) -> list[float]:
        """The line's values at `answers`."""
        return [line.dollars(replace(self.traffic, answers_per_day=answers)) for answers in self.answers()]


def require_curve(path: Path) -> None:
    """Refuse before anything is counted.

    Raises UsageError where the name ends otherwise or its folder is missing, CommandError without matplotlib.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot writes a PNG or SVG; give it a name that ends in .png or .svg, not {str(path)!r}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {str(path.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib; install it with: pip install 'soloist[bench]'")


def draw(path: Path, panels: Sequence[Panel], description: str = "") -> None:
    """Write the panels side by side. `description` goes into a PNG's text, where a test finds it again."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display or any global state
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(7.4 * len(panels), 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        axes.set_xscale("log")
        axes.set_yscale("log")
        highest = lowest = 0.0
        for line in panel.lines:
            values = panel.dollars(line)
            axes.plot(panel.answers(), values, color=line.colour, linestyle="--" if line.rival else "-", linewidth=2.2)
            highest, lowest = max(highest, values[-1]), min(lowest or values[0], values[0])
        axes.set_xlim(panel.least, panel.most)
        axes.set_ylim(lowest / 1.6, highest * 2.2)
        _name_lines(axes, panel, math.log(highest * 2.2 / (lowest / 1.6)))
        if panel.mark is not None:
            at, words = panel.mark
            axes.axvline(at, color="#555555", linewidth=1, linestyle=":")
            axes.annotate(
                words, (at, lowest / 1.6), xytext=(5, 6), textcoords="offset points", fontsize=9, color="#333333"
            )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"${value:,.10g}"))
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.7)
        axes.set_xlabel("answers a day")
        axes.set_ylabel("dollars a month")
        axes.set_title(panel.title, fontsize=11, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    written = {"Software": None, "Description": description} if path.suffix.lower() == ".png" else {"Date": None}
    figure.savefig(path, dpi=110, metadata=written)


def _name_lines(axes: object, panel: Panel, span: float) -> None:
    """Each line's name at its right end, where a legend would have to be looked up."""
    ends = sorted((math.log(panel.dollars(line)[-1]), place) for place, line in enumerate(panel.lines))
    for (_, place), height in zip(ends, _apart([end for end, _ in ends], span * 0.055), strict=True):
        axes.annotate(  # type: ignore[attr-defined]
            panel.lines[place].name,
            (panel.most, math.exp(height)),
            xytext=(6, 0),
            textcoords="offset points",
            color=panel.lines[place].colour,
            fontsize=9.5,
            va="center",
            annotation_clip=False,
        )


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved as little as keeps them `gap` from each other, up and down alike."""
    groups: list[tuple[float, int]] = []  # the middle and how many
    for height in heights:
        middle, count = height, 1
        while groups and middle - gap * (count - 1) / 2 - gap < groups[-1][0] + gap * (groups[-1][1] - 1) / 2:
            below, more = groups.pop()
            middle, count = (middle * count + below * more) / (count + more), count + more
        groups.append((middle, count))
    return [middle + gap * (place - (count - 1) / 2) for middle, count in groups for place in range(count)]
