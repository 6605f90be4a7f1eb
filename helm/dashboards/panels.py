"""The kinds of panel, each with its unit and a description that says what is normal and what to do when it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from helm.dashboards.variables import DATASOURCE

Panel = timeseries.Panel | stat.Panel | table.Panel | heatmap.Panel | bargauge.Panel
Steps = Sequence[tuple[float, str]]  # (from this value on, color); below the first, green

SECONDS, SHARE, BYTES, PER_SECOND, COUNT, BYTES_PER_SECOND = "s", "percentunit", "bytes", "cps", "short", "Bps"
TOKENS_PER_SECOND = "suffix: tok/s"
TOKENS = "suffix: tok"
STAT_HEIGHT, GRAPH_HEIGHT, TABLE_HEIGHT = 4, 8, 9
GRAPH_WIDTH = 8  # of 24; a row may widen its graphs


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its series are called; `legend` may use labels, as `{{pod}}`."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of pods: one value for each (namespace, pod)."""

    title: str
    expression: str
    unit: str = COUNT
    steps: Steps = ()


@dataclass(frozen=True, slots=True)
class Labels:
    """Columns made of the labels of one series a pod: label -> title. The series' value is not shown."""

    expression: str
    titles: dict[str, str] = field(default_factory=dict)


def graph(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
) -> timeseries.Panel:
    """Lines over time, or areas on top of each other where parts make a whole.

    `colors` are those of series by a pattern of their legends, where a color means something.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .span(GRAPH_WIDTH)
        .height(GRAPH_HEIGHT)
        .line_width(1)
        .fill_opacity(60 if stacked else 8)
        .show_points(look.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(look.LegendDisplayMode.TABLE)
            .placement(look.LegendPlacement.BOTTOM)
            .calcs(["mean", "max", "lastNotNull"])
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
    )
    if unit == SHARE and not stacked:
        panel = panel.axis_soft_max(1)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL).group("A"))
    for pattern, color in (colors or {}).items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
        panel = panel.override_by_regexp(pattern, [fixed])
    for at, query in enumerate(queries):
        panel = panel.with_target(_range(query, at))
    return panel


def figure(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *,
    steps: Steps = (),
    none: str = "no turns",
    mappings: Sequence[model.ValueMap] = (),
    legend: str = "",
    decimals: int | None = None,
    width: int = 4,
) -> stat.Panel:
    """One number over all of the time shown, green below the first of `steps`; `none` stands where there is none.

    A `legend` is shown beside the number, and names its series.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(STAT_HEIGHT)
        .no_value(none)
        .mappings([*mappings, _nan(none)])
        .color_mode(look.BigValueColorMode.BACKGROUND)
        .graph_mode(look.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(steps))
        .text_mode(look.BigValueTextMode.VALUE_AND_NAME if legend else look.BigValueTextMode.VALUE)
        .with_target(_instant(Query(expression, legend), 0))
    )
    return panel if decimals is None else panel.decimals(decimals)


def spread(title: str, description: str, expression: str) -> heatmap.Panel:
    """A histogram over time: where the many are, and where the few. `expression` keeps the label `le`, in seconds."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(GRAPH_WIDTH)
        .height(GRAPH_HEIGHT)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(SECONDS))
        .cell_gap(1)
        .with_target(_range(Query(expression, "{{le}}"), 0).format(PromQueryFormat.HEATMAP))
    )


def bars(title: str, description: str, unit: str, queries: Sequence[Query]) -> bargauge.Panel:
    """One bar a series, of the latest value."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .span(GRAPH_WIDTH)
        .height(GRAPH_HEIGHT)
        .orientation(look.VizOrientation.HORIZONTAL)
        .display_mode(look.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(()))
    )
    for at, query in enumerate(queries):
        panel = panel.with_target(_instant(query, at))
    return panel


def pods(title: str, description: str, columns: Sequence[Column], facts: Labels | None = None) -> table.Panel:
    """One line a pod, pages of them where there are many. The first column of values sorts, largest first."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(24)
        .height(TABLE_HEIGHT)
        .filterable(True)
        .footer(common.TableFooterOptions().show(False).enable_pagination(True))
    )
    names: dict[str, str] = {"namespace": "Namespace", "pod": "Pod"}
    hidden = ["Time"]
    queries = [Query(column.expression) for column in columns]
    if facts is not None:
        names |= facts.titles
        hidden.append(f"Value #{_letter(len(columns))}")
        queries.append(Query(facts.expression))
    for at, query in enumerate(queries):
        panel = panel.with_target(_instant(query, at).format(PromQueryFormat.TABLE))
    names |= {f"Value #{_letter(at)}": column.title for at, column in enumerate(columns)}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(hidden, True),
                "indexByName": {name: at for at, name in enumerate(names)},
                "renameByName": names,
            },
        )
    )
    for column in columns:
        properties: list[model.DynamicConfigValue] = [model.DynamicConfigValue(id_val="unit", value=column.unit)]
        if column.steps:
            properties.append(model.DynamicConfigValue(id_val="thresholds", value=_thresholds(column.steps).build()))
            properties.append(
                model.DynamicConfigValue(
                    id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}
                )
            )
        panel = panel.override_by_name(column.title, properties)
    return panel.sort_by([common.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def text_of(value: float, text: str, color: str) -> model.ValueMap:
    """A word in place of a number."""
    return model.ValueMap(options={f"{value:g}": model.ValueMappingResult(text=text, color=color, index=0)})


def _nan(text: str) -> Any:
    return model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(
            match=model.SpecialValueMatch.NULL_AND_NAN,
            result=model.ValueMappingResult(text=text, color="text", index=1),
        )
    )


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    first = model.Threshold(value=None, color="green")
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([first, *(model.Threshold(value=value, color=color) for value, color in steps)])
    )


def _range(query: Query, at: int) -> prometheus.Dataquery:
    return _query(query, at).range()


def _instant(query: Query, at: int) -> prometheus.Dataquery:
    return _query(query, at).instant()


def _query(query: Query, at: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().datasource(DATASOURCE).expr(query.expression).ref_id(_letter(at))
    return made.legend_format(query.legend) if query.legend else made


def _letter(at: int) -> str:
    return chr(ord("A") + at)
