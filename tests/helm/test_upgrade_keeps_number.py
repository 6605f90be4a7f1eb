"""An upgrade keeps the number of pods that there are, where something scales them: helm looks it up in the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helm.rendering import CHART, Document, helm, parse, render, the

KEPT_BY_THE_CHART = {"soloist.dev/replicas-by": "chart"}


def upgraded(namespace: str, mode: str, kubeconfig: Path) -> Document:
    """The Deployment as the upgrade makes it."""
    words = ["--set", f"autoscaling.mode={mode}", "--set", "monitoring.podMonitor.enabled=true"]
    text = helm(
        *("template", "soloist", str(CHART), "--dry-run=server", *words),
        *("--namespace", namespace, "--kubeconfig", str(kubeconfig)),
    )
    return the(parse(text), "Deployment", "soloist")


@pytest.mark.parametrize("mode", ["keda", "hpa"])
@pytest.mark.parametrize(
    ("namespace", "replicas"),
    [
        ("kept", 3),  # the chart gave the number before: left out, Kubernetes would take 1
        ("scaled", None),  # it never did: the number is the scaler's
        ("elsewhere", None),  # nothing is there yet
    ],
)
def test_a_scaler_begins_with_the_pods_that_there_are(
    namespace: str, replicas: int | None, mode: str, kubeconfig: Path
) -> None:
    deployment = upgraded(namespace, mode, kubeconfig)
    assert deployment["spec"].get("replicas") == replicas
    # The next upgrade must know, too.
    assert (deployment["metadata"].get("annotations") == KEPT_BY_THE_CHART) is (replicas is not None)


def test_the_number_of_the_values_is_known_as_the_charts(kubeconfig: Path) -> None:
    assert the(render(), "Deployment")["metadata"]["annotations"] == KEPT_BY_THE_CHART
    assert upgraded("kept", "none", kubeconfig)["spec"]["replicas"] == 1
