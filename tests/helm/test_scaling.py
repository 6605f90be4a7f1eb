"""How many pods: looked at who waits, by one of two scalers or by none; and what an upgrade must not touch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.ops.metrics import Metrics
from tests.helm.leaves import over
from tests.helm.rendering import CHART, Document, RenderError, ci_files, of_kind, render, settings_file, the

SCALERS = {"HorizontalPodAutoscaler", "ScaledObject"}
SCRAPED: dict[str, Any] = {"monitoring": {"podMonitor": {"enabled": True}}}
KEDA: dict[str, Any] = over(SCRAPED, {"autoscaling": {"mode": "keda"}})


@pytest.mark.parametrize(
    ("mode", "scalers"), [("none", set()), ("keda", {"ScaledObject"}), ("hpa", {"HorizontalPodAutoscaler"})]
)
def test_one_scaler_at_most_and_then_no_number_in_the_deployment(mode: str, scalers: set[str]) -> None:
    documents = render(over(SCRAPED, {"autoscaling": {"mode": mode}, "replicas": 3}))
    assert {document["kind"] for document in documents} & SCALERS == scalers
    # A number in the Deployment would set the scaler's work back at each upgrade.
    assert the(documents, "Deployment")["spec"].get("replicas") == (None if scalers else 3)


@pytest.mark.parametrize("mode", ["keda", "hpa"])
def test_scalers_look_at_who_waits_and_never_at_who_is_served(mode: str) -> None:
    scaler = yaml.safe_dump([d for d in render(over(SCRAPED, {"autoscaling": {"mode": mode}})) if d["kind"] in SCALERS])
    assert set(re.findall(r"soloist_\w+", scaler)) == {"soloist_queue_depth", "soloist_predicted_wait_seconds"}
    assert "running" not in scaler
    assert "active" not in scaler


def test_scalers_ask_for_metrics_that_the_server_has() -> None:
    names = {family.name for family in Metrics().registry.collect()}
    assert {"soloist_queue_depth", "soloist_predicted_wait_seconds"} <= names


def test_the_queries_mean_the_pods_of_this_release_only() -> None:
    triggers = the(render(over(KEDA, {"placement": {"onDemandFloor": 1}})), "ScaledObject")["spec"]["triggers"]
    for trigger in triggers:
        found = re.search(r'namespace="([^"]+)",pod=~"([^"]+)"', trigger["metadata"]["query"])
        assert found is not None
        namespace, pods = found.groups()
        assert namespace == "soloist"
        for pod, ours in {
            "soloist-6d4cf56db6-x7k2p": True,
            "soloist-floor-7f9cbd6c44-aaaaa": True,
            "soloist-gateway-7f9cbd6c44-aaaaa": False,
            "soloist-b-7f9cbd6c44-aaaaa": False,
            "other-6d4cf56db6-x7k2p": False,
        }.items():
            assert bool(re.fullmatch(pods, pod)) is ours, pod


def test_a_wait_is_no_sum_and_is_not_divided_by_the_pods() -> None:
    waiting, wait = the(render(KEDA), "ScaledObject")["spec"]["triggers"]
    assert (waiting["metadata"]["query"][:4], waiting.get("metricType", "AverageValue")) == ("sum(", "AverageValue")
    assert (wait["metadata"]["query"][:4], wait["metricType"]) == ("avg(", "Value")


def test_a_prometheus_without_figures_is_an_error_and_not_an_empty_queue() -> None:
    def looks(values: dict[str, Any]) -> set[str]:
        triggers = the(render(values), "ScaledObject")["spec"]["triggers"]
        return {t["metadata"]["ignoreNullValues"] for t in triggers if t["type"] == "prometheus"}

    assert looks(KEDA) == {"false"}
    # With an error and no fallback the number of pods stays; a fallback would be gone to from any number.
    assert "fallback" not in the(render(KEDA), "ScaledObject")["spec"]
    # At night there is no pod and no figure: that is as it should be.
    assert looks(over(KEDA, {"autoscaling": {"workHours": {"enabled": True}}})) == {"true"}


@pytest.mark.parametrize(
    ("mode", "settings", "age_s"),
    [
        ("none", {}, 1800),
        ("keda", {}, 300),
        ("hpa", {}, 300),
        ("hpa", {"connection_age_s": 60.5}, 60.5),
        ("keda", {"connection_age_s": 3600}, 300),
    ],
)
def test_rpc_06_clients_look_for_pods_sooner_where_pods_are_added(
    mode: str, settings: dict[str, float], age_s: float
) -> None:
    documents = render(over(SCRAPED, {"autoscaling": {"mode": mode}, "settings": settings}))
    assert yaml.safe_load(settings_file(documents))["connection_age_s"] == age_s


def test_nobody_is_scaled_by_metrics_that_nothing_scrapes() -> None:
    blind: dict[str, Any] = {"autoscaling": {"mode": "keda"}}
    with pytest.raises(RenderError, match=r"monitoring\.podMonitor\.enabled, or say autoscaling\.prometheus\.scraped"):
        render(blind)
    assert of_kind(render(over(blind, {"autoscaling": {"prometheus": {"scrapedElsewhere": True}}})), "ScaledObject")


def test_the_night_ends_the_last_pod_and_the_morning_begins_the_first() -> None:
    [file] = [path for path in ci_files() if path.name.startswith("night-off")]
    spec = the(render(files=[file]), "ScaledObject")["spec"]
    assert spec["minReplicaCount"] == 0
    [hours] = [trigger["metadata"] for trigger in spec["triggers"] if trigger["type"] == "cron"]
    assert hours["desiredReplicas"] == "1"
    assert hours["timezone"] == "Europe/Berlin"
    # Without hours nothing would begin the first pod again: with no pod there is no queue to look at.
    assert the(render(KEDA), "ScaledObject")["spec"]["minReplicaCount"] == 1


def test_a_prometheus_that_asks_who_calls_is_told() -> None:
    documents = render(over(KEDA, {"autoscaling": {"prometheus": {"authentication": "prometheus"}}}))
    for trigger in the(documents, "ScaledObject")["spec"]["triggers"]:
        assert trigger["authenticationRef"] == {"name": "prometheus"}


def test_k8s_04_selectors_do_not_change_from_version_to_version(tmp_path: Path) -> None:
    """They are immutable: an upgrade that changes one is refused by the cluster."""
    later = tmp_path / "soloist"
    shutil.copytree(CHART, later)
    chart = yaml.safe_load((later / "Chart.yaml").read_text(encoding="utf-8"))
    chart |= {"version": "9.8.7", "appVersion": "7.8.9"}
    (later / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    values = {
        "gateway": {"enabled": True},
        "placement": {"onDemandFloor": 1},
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
    }
    now, then = (_selectors(render(values, chart=path)) for path in (CHART, later))
    assert now == then
    assert len(now) >= 8
    assert "7.8.9" in yaml.safe_dump(render(values, chart=later))


def _selectors(documents: list[Document]) -> dict[str, Any]:
    return {
        f"{d['kind']}/{d['metadata']['name']}": d["spec"].get("selector", d["spec"].get("podSelector"))
        for d in documents
        if {"selector", "podSelector"} & {*d.get("spec", {})}
    }


def test_two_releases_in_one_cluster_have_no_object_in_common() -> None:
    values = {"priority": {"create": True}, "kubernetes": {"admissionPolicy": True}}

    def names(release: str, namespace: str) -> set[tuple[str, str]]:
        in_cluster = {"ClusterRole", "ClusterRoleBinding", "PriorityClass"}
        in_cluster |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
        found = render(values, release=release, namespace=namespace)
        return {
            (d["kind"], d["metadata"]["name"] if d["kind"] in in_cluster else f"{namespace}/{d['metadata']['name']}")
            for d in found
        }

    assert not names("soloist", "one") & names("soloist", "two")
    assert not names("soloist", "one") & names("other", "one")


def test_a_long_release_name_makes_names_that_fit() -> None:
    for document in render({"gateway": {"enabled": True}, "placement": {"onDemandFloor": 1}}, release="a" * 53):
        assert len(document["metadata"]["name"]) <= 63


def test_every_pod_is_scraped_by_the_port_that_it_has() -> None:
    documents = render({"monitoring": {"podMonitor": {"enabled": True}}})
    spec = the(documents, "PodMonitor")["spec"]
    labels = the(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = spec["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert not of_kind(render(), "PodMonitor")
