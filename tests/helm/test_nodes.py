"""The chart of nodes: what Karpenter takes, which limits fit, and that no node has more GPUs than its pod."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from helm import nodes, values_comments
from tests.helm.rendering import CHART, NODES_CHART, Document, RenderError, ci_files, helm, of_kind, render, the
from tests.helm.rendering import server_pod as soloist_pod
from tests.helm.validation import faults

VALUES: dict[str, Any] = yaml.safe_load((NODES_CHART / "values.yaml").read_text(encoding="utf-8"))
TYPES: dict[str, dict[str, int]] = yaml.safe_load((NODES_CHART / "instance-types.yaml").read_text(encoding="utf-8"))


SPOT = {"pools": {"spot": {"moreInstanceTypes": ["g6.xlarge"]}}}


def rendered(values: Mapping[str, Any] | None = None, *files: Path) -> list[Document]:
    return render(values, chart=NODES_CHART, files=files)


def requirement(pool: Document, key: str) -> list[str]:
    [found] = [each for each in pool["spec"]["template"]["spec"]["requirements"] if each["key"] == key]
    assert found["operator"] == "In"
    values: list[str] = found["values"]
    return values


# The whole.


@pytest.mark.parametrize("values", [None, *ci_files(NODES_CHART)], ids=lambda path: path.stem if path else "defaults")
def test_inf_06_every_manifest_is_one_of_karpenters_v1(values: Path | None) -> None:
    documents = rendered(None, *([values] if values else []))

    assert not faults(documents)
    assert {document["kind"] for document in documents} == {"EC2NodeClass", "NodePool"}
    class_ = the(documents, "EC2NodeClass")
    assert class_["apiVersion"] == "karpenter.k8s.aws/v1"
    for pool in of_kind(documents, "NodePool"):
        assert pool["apiVersion"] == "karpenter.sh/v1"
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": class_["metadata"]["name"]}
        assert pool["spec"]["template"]["spec"]["nodeClassRef"] == reference
        assert pool["spec"]["disruption"]["consolidateAfter"]
        assert pool["spec"]["disruption"]["consolidationPolicy"] in ("WhenEmpty", "WhenEmptyOrUnderutilized")


@pytest.mark.parametrize("values", [None, *ci_files(NODES_CHART)], ids=lambda path: path.stem if path else "defaults")
def test_helm_lint_is_strictly_clean(values: Path | None) -> None:
    text = helm("lint", "--strict", str(NODES_CHART), *(("--values", str(values)) if values else ()))
    assert "0 chart(s) failed" in text


def test_inf_06_an_old_or_misspelt_field_would_be_seen() -> None:
    pool = json.loads(json.dumps(of_kind(rendered(), "NodePool")[0]))
    pool["spec"]["disruption"]["consolidationPolicy"] = "WhenUnderutilized"
    del pool["spec"]["disruption"]["consolidateAfter"]
    pool["spec"]["template"]["spec"]["nodeClassRef"] = {"name": "soloist-gpu"}
    pool["spec"]["template"]["spec"]["kubelet"] = {}

    found = "\n".join(faults([pool]))
    for word in (
        "'WhenUnderutilized' is not one of",
        "'consolidateAfter' is a required",
        "'group' is a required",
        "kubelet",
    ):
        assert word in found


def test_generated_parts_are_fresh() -> None:
    assert not nodes.stale(), "run `python -m helm.generate`"


def test_what_terraform_gives_is_what_the_chart_takes() -> None:
    outputs = (CHART.parents[1] / "terraform" / "cluster" / "outputs.tf").read_text(encoding="utf-8")
    [block] = re.findall(r'output "soloist_nodes_values" \{.*?value = \{(.*?)\n  \}', outputs, flags=re.DOTALL)
    given = {name: {"team": "chat"} if name == "tags" else f"a-{name}" for name in re.findall(r"(\w+) +=", block)}

    class_ = the(rendered(given), "EC2NodeClass")
    assert {"clusterName", "nodeRole", "tags"} <= set(given) <= set(VALUES)
    assert class_["spec"]["role"] == "a-nodeRole"
    assert class_["spec"]["tags"] == {"team": "chat"}
    discovery = given.get("discovery", "a-clusterName")
    assert class_["spec"]["subnetSelectorTerms"] == [{"tags": {"karpenter.sh/discovery": discovery}}]


# Nodes as they should be.


def test_the_default_is_spot_g5_first_and_on_demand_by_weight() -> None:
    spot, on_demand = of_kind(rendered(), "NodePool")

    assert [pool["metadata"]["name"] for pool in (spot, on_demand)] == ["gpu-spot", "gpu-on-demand"]
    assert requirement(spot, "karpenter.sh/capacity-type") == ["spot"]
    assert requirement(on_demand, "karpenter.sh/capacity-type") == ["on-demand"]
    assert spot["spec"]["weight"] > on_demand["spec"]["weight"]
    for pool in (spot, on_demand):
        assert requirement(pool, "node.kubernetes.io/instance-type") == ["g5.xlarge", "g5.2xlarge"]
        assert pool["spec"]["limits"] == {"cpu": "40", "memory": "160Gi", "nvidia.com/gpu": "8"}
        assert pool["spec"]["template"]["metadata"]["labels"] == {"soloist.dev/pool": pool["metadata"]["name"]}
        assert pool["spec"]["disruption"]["consolidationPolicy"] == "WhenEmptyOrUnderutilized"
        assert pool["spec"]["disruption"]["consolidateAfter"] == "30s"


def test_further_types_are_asked_between_both() -> None:
    spot, more, on_demand = of_kind(rendered(SPOT), "NodePool")

    assert spot["spec"]["weight"] > more["spec"]["weight"] > on_demand["spec"]["weight"]
    assert requirement(more, "node.kubernetes.io/instance-type") == ["g6.xlarge"]
    assert requirement(more, "karpenter.sh/capacity-type") == ["spot"]
    assert more["spec"]["template"]["metadata"]["labels"] == spot["spec"]["template"]["metadata"]["labels"]


def test_machines_are_as_the_cluster_should_trust_them() -> None:
    spec = the(rendered(), "EC2NodeClass")["spec"]

    assert spec["amiSelectorTerms"] == [{"alias": "al2023@latest"}]
    assert ("role" in spec, "instanceProfile" in spec) == (True, False)
    assert spec["metadataOptions"]["httpTokens"] == "required"
    assert spec["metadataOptions"]["httpPutResponseHopLimit"] == 1
    assert spec["associatePublicIPAddress"] is False
    assert spec["instanceStorePolicy"] == "RAID0"
    [disk] = spec["blockDeviceMappings"]
    assert disk["ebs"]["encrypted"] is True
    assert disk["ebs"]["deleteOnTermination"] is True


def test_pods_of_the_server_fit_the_nodes() -> None:
    """Label, taint and size: what the chart `soloist` asks for by default, these nodes have."""
    pod = soloist_pod(render())
    pools = {pool["metadata"]["name"]: pool for pool in of_kind(rendered(), "NodePool")}
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [expression] = term["matchExpressions"]
    assert expression["key"] == "soloist.dev/pool"
    assert set(expression["values"]) == set(pools)
    for pool in pools.values():
        for taint in pool["spec"]["template"]["spec"]["taints"]:
            assert any(
                toleration["key"] == taint["key"] and toleration["effect"] == taint["effect"]
                for toleration in pod["tolerations"]
            )
    limits = pod["containers"][0]["resources"]["limits"]
    for name in VALUES["instanceTypes"]:
        assert float(limits["cpu"]) < TYPES[name]["cpu"]
        assert float(limits["memory"].removesuffix("Gi")) < TYPES[name]["memory"]
        assert int(limits["nvidia.com/gpu"]) == 1


# Karpenter's reports from the field.


def test_inf_01_a_node_that_goes_waits_for_no_pod_for_ever_and_longer_than_for_one() -> None:
    for pool in of_kind(rendered(), "NodePool"):
        assert pool["spec"]["template"]["spec"]["terminationGracePeriod"] == "15m"
    assert soloist_pod(render())["terminationGracePeriodSeconds"] < 15 * 60
    with pytest.raises(RenderError, match=r"disruption\.terminationGracePeriod is 1m30s, less than the 110 s"):
        rendered({"disruption": {"terminationGracePeriod": "1m30s"}})


def test_inf_02_calm_nodes_end_when_they_are_empty_for_five_minutes() -> None:
    for pool in of_kind(rendered({"disruption": {"consolidation": "calm"}}), "NodePool"):
        assert pool["spec"]["disruption"] == {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": "5m",
            "budgets": [{"nodes": "1"}],
        }


@pytest.mark.parametrize(("after", "right"), [("4m59s", False), ("299s", False), ("300s", True), ("1h", True)])
def test_inf_02_calm_is_five_minutes_at_least(after: str, right: bool) -> None:
    values = {"disruption": {"consolidation": "calm", "consolidateAfter": after}}
    if right:
        assert of_kind(rendered(values), "NodePool")[0]["spec"]["disruption"]["consolidateAfter"] == after
    else:
        with pytest.raises(RenderError, match=rf"disruption\.consolidateAfter is {after}: with .* calm"):
            rendered(values)


def test_inf_02_by_default_one_node_goes_at_a_time() -> None:
    for pool in of_kind(rendered(), "NodePool"):
        assert pool["spec"]["disruption"]["budgets"] == [{"nodes": "1"}]


@pytest.mark.parametrize("values", [None, *ci_files(NODES_CHART)], ids=lambda path: path.stem if path else "defaults")
def test_inf_05_the_limits_are_enough_for_every_node_and_each_has_one_gpu(values: Path | None) -> None:
    given = yaml.safe_load(values.read_text(encoding="utf-8")) if values else {}
    most = given.get("maxNodes", VALUES["maxNodes"])
    for pool in of_kind(rendered(None, *([values] if values else [])), "NodePool"):
        limits = pool["spec"]["limits"]
        for name in requirement(pool, "node.kubernetes.io/instance-type"):
            assert most * TYPES[name]["cpu"] <= int(limits["cpu"])
            assert most * TYPES[name]["memory"] <= int(limits["memory"].removesuffix("Gi"))
        assert most <= int(limits["nvidia.com/gpu"])
        assert requirement(pool, "karpenter.k8s.aws/instance-gpu-count") == ["1"]


def test_inf_05_the_default_pools_have_room_for_the_default_fleet() -> None:
    fleet = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert fleet["rollout"] == "surge", "an upgrade starts one more pod, which needs a node"
    most = fleet["autoscaling"]["maxReplicas"] + fleet["placement"]["onDemandFloor"] + 1
    assert most <= VALUES["maxNodes"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"maxNodes": 6}, "limits.cpu is 40, and maxNodes=6 nodes of g5.2xlarge have 48: raise it"),
        ({"instanceTypes": ["g5.4xlarge"]}, "limits.cpu is 40, and maxNodes=5 nodes of g5.4xlarge have 80"),
        ({"limits": {"memory": "159Gi"}}, "limits.memory is 159Gi, and maxNodes=5 nodes of g5.2xlarge have 160Gi"),
        (
            {"pools": {"spot": {"moreInstanceTypes": ["g6e.2xlarge"]}}},
            "limits.memory is 160Gi, and maxNodes=5 nodes of g6e.2xlarge have 320Gi",
        ),
        ({"limits": {"gpus": 3}}, "limits.gpus is 3, and maxNodes=5 nodes have one GPU each"),
        ({"pools": {"spot": {"enabled": False}, "onDemand": {"enabled": False}}}, "Both pools are off"),
        ({"pools": {"spot": {"name": "a"}, "onDemand": {"name": "a"}}}, "are both a: pods could not tell"),
        ({"pools": {"onDemand": {"weight": 100}}}, "on-demand nodes would come first"),
        (
            {"pools": {"spot": {"weight": 20, "moreInstanceTypes": ["g6.xlarge"]}}},
            "Half of pools.spot.weight, 20, is for pools.spot.moreInstanceTypes",
        ),
        ({"pools": {"spot": {"moreInstanceTypes": ["g5.xlarge"]}}}, "g5.xlarge is in instanceTypes and in"),
        ({"pools": {"spot": {"enabled": False, **SPOT["pools"]["spot"]}}}, "pools.spot.enabled is false"),
        ({"nodeClass": {"rootVolume": {"iops": 16001}}}, "nodeClass.rootVolume.iops is 16001"),
    ],
)
def test_inf_05_values_that_do_not_fit_each_other_are_refused_with_a_sentence(
    values: dict[str, Any], says: str
) -> None:
    with pytest.raises(RenderError) as caught:
        rendered(values)
    assert says in str(caught.value)


# Every value.

# A right value that is not the default, and wrong ones.
LEAVES: dict[str, tuple[Any, list[Any]]] = {
    "clusterName": ("other", ["", "a b", 7]),
    "nodeRole": ("other", ["arn:aws:iam::1:role/x", 7]),
    "discovery": ("other", ["a b", 7]),
    "tags": ({"a": "b"}, [{"a": 1}, ["a"]]),
    "maxNodes": (3, [0, 1.5, "4"]),
    "limits.cpu": (64, [0, "32"]),
    "limits.memory": ("256Gi", ["128G", "0Gi", 128]),
    "limits.gpus": (6, [0, "8"]),
    "instanceTypes": (["g6.xlarge"], [[], ["g5.12xlarge"], ["g5.xlarge", "g5.xlarge"], "g5.xlarge"]),
    "zones": (["eu-west-1a"], [["eu west"], "eu-west-1a"]),
    "pools.spot.enabled": (False, ["yes"]),
    "pools.spot.name": ("other", ["Other", ""]),
    "pools.spot.weight": (90, [0, 101]),
    "pools.spot.moreInstanceTypes": (["g6.xlarge"], [["p5.48xlarge"]]),
    "pools.onDemand.enabled": (False, ["yes"]),
    "pools.onDemand.name": ("other", ["Other"]),
    "pools.onDemand.weight": (9, [0, 101]),
    "labels": ({"a": "b"}, [{"a": "b c"}, ["a"]]),
    "taints": (
        [{"key": "a", "effect": "NoExecute"}],
        [
            [{"key": "a"}],
            [{"key": "a", "effect": "Never"}],
        ],
    ),
    "disruption.consolidation": ("calm", ["WhenEmpty"]),
    "disruption.consolidateAfter": ("1h", ["soon", 30]),
    "disruption.budgets": (
        [{"nodes": "10%"}],
        [[], [{"nodes": 1}], [{"nodes": "1", "schedule": "0 7 * * *"}], [{"nodes": "1", "reasons": ["Spot"]}]],
    ),
    "disruption.expireAfter": ("Never", ["30d"]),
    "disruption.terminationGracePeriod": ("20m", ["Never", "1d"]),
    "nodeClass.name": ("other", ["Other"]),
    "nodeClass.amiAlias": ("al2023@v20260115", ["al2@latest", "al2023", "bottlerocket@latest"]),
    "nodeClass.instanceStore": (False, ["RAID0"]),
    "nodeClass.rootVolume.size": ("90Gi", ["90G", 90]),
    "nodeClass.rootVolume.type": ("io2", ["st1"]),
    "nodeClass.rootVolume.iops": (4000, [100, "3000"]),
    "nodeClass.rootVolume.throughput": (300, [1, 5000]),
    "nodeClass.rootVolume.kmsKey": ("alias/other", ["a b"]),
    "nodeClass.detailedMonitoring": (True, ["yes"]),
}


def of(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def test_the_table_of_values_is_whole() -> None:
    read = values_comments.read((NODES_CHART / "values.yaml").read_text(encoding="utf-8"))
    assert list(LEAVES) == [".".join(value.path) for value in read if value.leaf]


def test_each_documented_value_changes_what_is_rendered() -> None:
    before = rendered()

    def changes(path: str) -> bool:
        if path == "maxNodes":  # it is what limits are held against
            return "maxNodes=9" in refusal(of(path, 9))
        after = rendered(of(path, LEAVES[path][0]))
        assert not faults(after), path
        return after != before

    with ThreadPoolExecutor(2) as threads:
        assert not [path for path, changed in zip(LEAVES, threads.map(changes, LEAVES), strict=True) if not changed]


def test_each_wrong_value_is_refused_by_its_name() -> None:
    schema = jsonschema.Draft7Validator(json.loads((NODES_CHART / "values.schema.json").read_text(encoding="utf-8")))
    assert not list(schema.iter_errors(VALUES))
    for path, (_, values) in LEAVES.items():
        for value in values:
            places = [error.json_path for error in schema.iter_errors(of(path, value))]
            assert any(place.startswith(f"$.{path}") for place in places), (path, value, places)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"typo": 1}, "additional properties 'typo' not allowed"),
        ({"nodeClass": {"rootVolume": {"typo": 1}}}, "at '/nodeClass/rootVolume': additional properties 'typo'"),
        ({"instanceTypes": ["g5.12xlarge"]}, "at '/instanceTypes/0': value must be one of"),
        ({"tags": {"kubernetes.io/cluster/x": "owned"}}, 'tags: "kubernetes.io/cluster/x" is set by'),
        ({"tags": {"karpenter.sh/nodepool": "x"}}, 'tags: "karpenter.sh/nodepool" is set by'),
        ({"tags": {"aws:a": "b"}}, 'tags: "aws:a" is set by'),
        ({"labels": {"soloist.dev/pool": "x"}}, 'labels: "soloist.dev/pool" is set by'),
        ({"labels": {"x.karpenter.sh/a": "b"}}, 'labels: "x.karpenter.sh/a" is set by'),
        ({"labels": {"a b": "c"}}, 'labels: "a b" is no name of a label'),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, "taints: karpenter.sh/disrupted is"),
    ],
)
def test_what_is_karpenters_or_misspelt_is_refused_with_a_sentence(values: dict[str, Any], says: str) -> None:
    assert says in refusal(values)


def refusal(values: dict[str, Any]) -> str:
    """What helm says, or nothing."""
    try:
        rendered(values)
    except RenderError as error:
        return str(error)
    return ""
