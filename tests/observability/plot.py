"""A contact sheet of a dashboard's panels as they come out of a run, for a person to look at.

`SHEETS=FOLDER pytest tests/observability -m slow` writes PNGs for each dashboard there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes

from tests.observability.conftest import Run
from tests.observability.expressions import Expression, dashboard, panels
from tests.observability.prometheus import Series

mpl.use("Agg")

COLUMNS = 4


def contact_sheet(path: Path, run: Run, variables: dict[str, str], to: Path) -> None:
    """Draw each panel of the dashboard at `path` with what Prometheus answers of `run`."""
    from matplotlib import pyplot as plt

    drawn = list(panels(dashboard(path)))
    rows = math.ceil(len(drawn) / COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(6.0 * COLUMNS, 3.6 * rows), squeeze=False)
    for place, panel in zip(axes.flat, drawn, strict=False):
        place.set_title(f"{panel['title']}  [{_unit(panel)}]", fontsize=10, loc="left")
        _draw(place, panel, variables, run)
    for place in axes.flat[len(drawn) :]:
        place.axis("off")
    figure.tight_layout()
    figure.savefig(to, dpi=60)
    plt.close(figure)


def _unit(panel: dict[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("unit", "")) if "fieldConfig" in panel else ""


def _draw(place: Axes, panel: dict[str, Any], variables: dict[str, str], run: Run) -> None:
    lines: list[tuple[str, Series]] = []
    for target in panel["targets"]:
        text = Expression(panel["title"], target["expr"]).filled(variables)
        instant = target.get("instant")
        found = run.prometheus.now(text, run.end_s) if instant else _over(run, text)
        lines += [(_called(target, series), series) for series in found]
    if panel["type"] == "stat":
        value = lines[0][1].values[-1] if lines else math.nan
        place.text(0.5, 0.5, f"{value:.4g}", ha="center", va="center", fontsize=28)
        place.axis("off")
    elif panel["type"] in ("table", "bargauge"):
        words = "\n".join(f"{name}: {series.values[-1]:.4g}" for name, series in lines)
        place.text(0, 1, words, va="top", fontsize=7, family="monospace")
        place.axis("off")
    elif panel["type"] == "heatmap":
        _heat(place, lines, run)
    else:
        _lines(place, panel, lines, run)


def _lines(place: Axes, panel: dict[str, Any], lines: list[tuple[str, Series]], run: Run) -> None:
    stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    shown = [(name, series) for name, series in lines if any(series.values)]
    if stacked and shown:
        times = sorted({time for _, series in shown for time, _ in series.points})
        heights = [[dict(series.points).get(time, 0.0) for time in times] for _, series in shown]
        place.stackplot([time - run.begin_s for time in times], heights, labels=[name for name, _ in shown])
    for name, series in [] if stacked else shown:
        place.plot([time - run.begin_s for time, _ in series.points], series.values, label=name, marker=".")
    idle = len(lines) - len(shown)
    place.set_xlabel(f"s; {idle} series at 0" if idle else "s", fontsize=8)
    place.set_ylim(bottom=0)
    if shown:
        place.legend(fontsize=7, loc="upper left")


def _heat(place: Axes, lines: list[tuple[str, Series]], run: Run) -> None:
    bounds = sorted(lines, key=lambda line: float(line[1].labels["le"]))
    times = sorted({time for _, series in bounds for time, _ in series.points})
    below = [0.0] * len(times)
    cells = []
    for _, series in bounds:
        points = dict(series.points)
        whole = [points.get(time, 0.0) for time in times]
        cells.append([value - before for value, before in zip(whole, below, strict=True)])
        below = whole
    place.imshow(cells, aspect="auto", origin="lower", cmap="Oranges", extent=(0, times[-1] - times[0], 0, len(cells)))
    marks = range(0, len(bounds), 4)
    place.set_yticks([mark + 1 for mark in marks], [bounds[mark][1].labels["le"] for mark in marks], fontsize=7)


def _over(run: Run, text: str) -> list[Series]:
    return run.prometheus.over(text, run.begin_s - 10, run.end_s)


def _called(target: dict[str, Any], series: Series) -> str:
    legend = target.get("legendFormat") or f"{target['refId']} " + ", ".join(series.labels.values())
    for label, value in series.labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend
