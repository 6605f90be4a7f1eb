"""What a viewer chooses, and the moments that are marked on every graph."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from helm.dashboards.promql import series

# Only ever by this variable: a uid of one Grafana is nothing in another.
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ALL = model.VariableOption(selected=True, text="All", value="$__all")


def datasource() -> build.DatasourceVariable:
    """Which Prometheus."""
    return build.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def chooser(name: str, label: str, query: str, description: str) -> build.QueryVariable:
    """One or more values of a label, all at first.

    `All` is the list of the values and not `.*`: pods follow the model that is chosen.
    """
    return (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(_ALL)
    )


def choosers() -> list[build.QueryVariable]:
    """Each narrows the ones after it."""
    return [
        chooser("namespace", "Namespace", "label_values(soloist_readiness, namespace)", "Where the pods run."),
        chooser(
            "model",
            "Model",
            'label_values(soloist_info{namespace=~"$namespace"}, model)',
            "Pods that serve other models are left out.",
        ),
        chooser(
            "pod",
            "Pod",
            'label_values(soloist_info{namespace=~"$namespace", model=~"$model"}, pod)',
            "All is the fleet. A pod is here from the moment its model is open.",
        ),
    ]


def marks() -> list[build.AnnotationQuery]:
    """Pods that leave. `changes` is exact where `increase` extrapolates, and the counters are there from the start.

    The window is that of the step at which Grafana looks for marks.
    """
    return [
        _mark("Node taken away", "red", 'cause="node_disruption"'),
        _mark("Told to stop", "blue", 'cause="signal"'),
    ]


def _mark(name: str, color: str, cause: str) -> build.AnnotationQuery:
    left = f"sum by (pod) (changes({series('soloist_drains_total', cause)}[1m])) > 0"
    return build.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(color).expr(left)
