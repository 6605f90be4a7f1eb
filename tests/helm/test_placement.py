"""On which nodes pods run, and how they are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.examples import documents_of, each_example
from tests.helm.leaves import over
from tests.helm.rendering import Document, render, server, server_pod, the


def test_gpus_are_asked_for_by_the_variant_that_has_them() -> None:
    assert server(render())["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in server_pod(render())[
        "tolerations"
    ]
    cpu = render({"variant": "cpu"})
    assert "nvidia.com/gpu" not in server(cpu)["resources"]["limits"]
    assert "tolerations" not in server_pod(cpu)
    slice_ = render({"resources": {"gpuResource": "nvidia.com/mig-1g.10gb"}})
    assert server(slice_)["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == 1


@pytest.mark.parametrize(
    ("capacity", "pools"),
    [
        ("spot", ["gpu-spot"]),
        ("on-demand", ["gpu-on-demand"]),
        ("spot-preferred", ["gpu-spot", "gpu-on-demand"]),
        ("anywhere", None),
    ],
)
def test_capacity_chooses_the_pools(capacity: str, pools: list[str] | None) -> None:
    affinity = server_pod(render({"placement": {"capacity": capacity}})).get("affinity")
    if pools is None:
        assert affinity is None
        return
    assert affinity is not None
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert required == [{"matchExpressions": [{"key": "soloist.dev/pool", "operator": "In", "values": pools}]}]
    preferred = affinity["nodeAffinity"].get("preferredDuringSchedulingIgnoredDuringExecution", [])
    assert bool(preferred) is (capacity == "spot-preferred")


def test_the_floor_stays_on_demand_and_is_served_like_the_rest() -> None:
    values = {"placement": {"capacity": "spot", "onDemandFloor": 2}, "autoscaling": {"mode": "keda"}}
    documents = render({**values, "monitoring": {"podMonitor": {"enabled": True}}})
    floor, main = the(documents, "Deployment", "soloist-floor"), the(documents, "Deployment", "soloist")
    assert floor["spec"]["replicas"] == 2
    [term] = floor["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["gpu-on-demand"]
    # Neither Deployment takes the other's pods for its own; the Service takes both.
    assert floor["spec"]["selector"] != main["spec"]["selector"]
    service = the(documents, "Service", "soloist")["spec"]["selector"]
    for deployment in (floor, main):
        assert service.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert the(documents, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "soloist"


@pytest.mark.parametrize(
    ("rollout", "strategy"),
    [
        ("surge", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ("replace", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ("recreate", {"type": "Recreate"}),
    ],
)
def test_one_gpu_clusters_replace_and_others_surge(rollout: str, strategy: dict[str, Any]) -> None:
    assert the(render({"rollout": rollout}), "Deployment")["spec"]["strategy"] == strategy


FLOOR: dict[str, Any] = {"placement": {"onDemandFloor": 1}}


def counts(deployment: Document, other: Document) -> set[bool]:
    """Whether pods of `deployment` keep apart from those of `other`, as the scheduler takes each of its constraints."""
    own, its = (d["spec"]["template"]["metadata"]["labels"] for d in (deployment, other))
    return {
        {**c["labelSelector"]["matchLabels"], **{key: own[key] for key in c["matchLabelKeys"]}}.items() <= its.items()
        for c in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    }


def test_pods_of_both_tiers_keep_apart_from_each_other() -> None:
    documents = render(FLOOR)
    main, floor = (the(documents, "Deployment", name) for name in ("soloist", "soloist-floor"))
    assert counts(main, floor) == counts(floor, main) == {True}


@pytest.mark.parametrize(
    ("changed", "another"),
    [
        ({"settings": {"slots": 5}}, True),
        ({"image": {"tag": "2"}}, True),
        ({"resources": {"cpu": "2"}}, True),
        ({"model": {"source": "pvc", "pvc": {"claimName": "a"}}}, True),
        ({"replicas": 5}, False),
        ({"placement": {"onDemandFloor": 3}}, False),
        ({"monitoring": {"podMonitor": {"enabled": True}}}, False),
    ],
)
def test_pods_that_are_replaced_are_not_counted(changed: dict[str, Any], another: bool) -> None:
    for name in ("soloist", "soloist-floor"):
        before, after = (the(render(over(FLOOR, values)), "Deployment", name) for values in ({}, changed))
        assert counts(after, after) == {True}
        assert counts(after, before) == {not another}
        # Selectors never change.
        assert before["spec"]["selector"] == after["spec"]["selector"]


@each_example
def test_pods_of_a_release_keep_apart(values: Path | None) -> None:
    constraints = server_pod(documents_of(values))["topologySpreadConstraints"]
    assert {c["topologyKey"] for c in constraints} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    labels = the(documents_of(values), "Deployment", "soloist")["spec"]["template"]["metadata"]["labels"]
    assert all(c["labelSelector"]["matchLabels"].items() <= labels.items() for c in constraints)
