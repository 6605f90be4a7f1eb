"""A dashboard: rows of panels, with the variables and marks that all dashboards share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from helm.dashboards import variables
from helm.dashboards.panels import Panel

TAG = "soloist"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one title. `width` is that of each, of 24 in all; without it they keep their own."""

    title: str
    panels: Sequence[Panel]
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard. `uid` is its own address in Grafana, and stays when its title changes."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]

    def as_json(self) -> str:
        """The dashboard as Grafana imports it, the same text each time."""
        page = (
            build.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .time("now-1h", "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .link(
                build.DashboardLink("Soloist")
                .type(model.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(variables.datasource())
        )
        for chooser in variables.choosers():
            page = page.with_variable(chooser)
        for mark in variables.marks():
            page = page.annotation(mark)
        ids = count(1)  # links to a panel are by its id
        for row in self.rows:
            page = page.with_row(build.Row(row.title).id(next(ids)))
            for panel in row.panels:
                panel.id(next(ids))
                page = page.with_panel(panel if row.width is None else panel.span(row.width))
        written: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(page.build()))
        for mark in written["annotations"]["list"]:
            mark |= {
                "titleFormat": mark["name"],
                "textFormat": "{{pod}}",
                "step": "60s",
            }  # the types know no such fields
        return json.dumps(written, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
