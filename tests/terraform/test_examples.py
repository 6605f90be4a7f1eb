"""terraform/examples: the variables plan, the values render, and what both sides say and cost belongs together."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cli.cost.bill import HOURS_PER_MONTH, NODE_DISK_GB, Traffic, node_month
from service.cli.cost.idle import OBSERVATIONS_PER_MINUTE, PARTS, platform_month
from service.cli.cost.prices import read_prices
from tests.helm.rendering import NODES_CHART, Document, of_kind, render, server_pod, the
from tests.helm.validation import faults
from tests.terraform.roots import TERRAFORM, copy_root

# Terraform starts a provider for each root, which takes most of a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

EXAMPLES = TERRAFORM / "examples"
NAMES = ("dev", "production")
CLUSTER = "cuda-graph-inference"
# What terraform/platform and terraform/cluster say of a place; test_platform.py and test_cluster.py hold them to it.
FACTS: dict[str, Any] = {
    "image": {"repository": "123456789012.dkr.ecr.us-east-1.amazonaws.com/soloist"},
    "model": {"source": "s3", "s3": {"uri": "s3://models/models/llama-3.1-8b", "region": "us-east-1"}},
    "serviceAccount": {"create": True, "name": "soloist"},
}
NODES_FACTS = {"clusterName": CLUSTER, "nodeRole": f"{CLUSTER}-karpenter-node", "tags": {"environment": "dev"}}


def test_the_clusters_are_what_the_idle_table_counts(terraform: str, tmp_path: Path) -> None:
    def counts(units: dict[str, float], name: str) -> dict[str, float]:
        nodes = "one(aws_eks_node_group.system.scaling_config).desired_size"
        return {
            "length(aws_nat_gateway.this)": units["nat_gateway_hour"] / HOURS_PER_MONTH,
            "length(aws_eip.nat)": units["public_ipv4_hour"] / HOURS_PER_MONTH,
            "length(aws_vpc_endpoint.interface)": 0,
            nodes: units["system_node_hour"] / HOURS_PER_MONTH,
            f"{nodes} * var.system_node_disk_gib + {_claimed_gib(name):g}": units["gp3_gb_month"],
            f"{nodes} * {OBSERVATIONS_PER_MINUTE} * 60 * {HOURS_PER_MONTH:g} / 1000000": units[
                "container_insights_million"
            ],
            # A disk is in one zone, and each zone has a node for the pod that uses it.
            f"(length(aws_eks_addon.ebs_csi) == 0 || {nodes} == 3 ? 1 : 0)": 1,
            "length(aws_eks_addon.ebs_csi)": 1 if _claimed_gib(name) else 0,
            "length(aws_kms_key.cluster[*])": units["kms_key_month"],
        }

    _plan(terraform, tmp_path, "cluster", counts)


def test_inf_10_the_platforms_plan_from_nothing_and_are_what_the_idle_table_counts(
    terraform: str, tmp_path: Path
) -> None:
    def counts(units: dict[str, float], name: str) -> dict[str, float]:
        pools = json.dumps(sorted(pool["metadata"]["name"] for pool in _pools(name)))
        return {
            # What the night may end is what the nodes' chart has.
            f"(jsonencode(sort(var.gpu_pools)) == jsonencode({pools}) ? 1 : 0)": 1,
            "length(aws_cloudwatch_metric_alarm.idle_gpu)": units["cloudwatch_alarm_month"],
            "length(aws_eks_addon.agent)": 1 if units["container_insights_million"] else 0,
            "length(aws_cloudwatch_dashboard.gpus[*])": units["cloudwatch_dashboard_month"],
            "length(aws_scheduler_schedule.night)": 1 if name == "dev" else 0,
            "(aws_s3_bucket.models.force_destroy ? 1 : 0)": 1 if name == "dev" else 0,
            "length(aws_ce_anomaly_subscription.alerts)": 1,
        }

    _plan(terraform, tmp_path, "platform", counts)


def _plan(terraform: str, folder: Path, root: str, counts: Callable[[dict[str, float], str], dict[str, float]]) -> None:
    """Plan `root` on mocks with the variables of each example, and hold each expression to its number."""
    lines = ['mock_provider "aws" {', '  source = "./tests/mocks"', "}"]
    for name in NAMES:
        variables = (EXAMPLES / name / f"{root}.tfvars").read_text(encoding="utf-8")
        lines += [f'run "{name}" {{', "command = plan", "variables {", variables, "}"]
        units = {part.item: part.units(name) for part in PARTS}
        for expression, number in counts(units, name).items():
            lines += [
                "assert {",
                f"condition = {expression} == {number:g}",
                f"error_message = {json.dumps(expression)}",
                "}",
            ]
        lines += ["}"]
    copied = copy_root(terraform, root, folder)
    (copied.folder / "tests" / "examples.tftest.hcl").write_text("\n".join(lines), encoding="utf-8")
    copied.run("test", "-no-color", "-filter=tests/examples.tftest.hcl")


@pytest.mark.parametrize("name", NAMES)
def test_both_charts_take_the_facts_and_the_values(name: str) -> None:
    assert faults(render(FACTS, files=(EXAMPLES / name / "soloist-values.yaml",))) == []
    nodes = render(NODES_FACTS, chart=NODES_CHART, files=(EXAMPLES / name / "soloist-nodes-values.yaml",))
    assert faults(nodes) == []
    on_demand = ["gpu-on-demand"] if name == "production" else []
    assert [pool["metadata"]["name"] for pool in _pools(name)] == ["gpu-spot", "gpu-spot-more", *on_demand]


def _pools(name: str) -> list[Document]:
    nodes = render(NODES_FACTS, chart=NODES_CHART, files=(EXAMPLES / name / "soloist-nodes-values.yaml",))
    return of_kind(nodes, "NodePool")


@pytest.mark.parametrize("name", NAMES)
def test_weights_go_from_the_network_to_the_device(name: str) -> None:
    """A new spot node has no cache to read, and one that it first writes to makes its pod wait."""
    documents = render(FACTS, files=(EXAMPLES / name / "soloist-values.yaml",))
    for deployment in of_kind(documents, "Deployment"):
        assert "cache" not in {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}


def test_dev_is_one_node_in_working_hours_and_none_at_night() -> None:
    documents = render(FACTS, files=(EXAMPLES / "dev" / "soloist-values.yaml",))
    scaled = the(documents, "ScaledObject")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 1)
    (hours,) = [trigger["metadata"] for trigger in scaled["triggers"] if trigger["type"] == "cron"]
    nodes = yaml.safe_load((EXAMPLES / "dev" / "soloist-nodes-values.yaml").read_text())
    assert (nodes["maxNodes"], nodes["limits"]["gpus"]) == (1, 1)
    assert all(pool["spec"]["limits"]["nvidia.com/gpu"] == "1" for pool in _pools("dev"))
    # The second guard comes after the first, in the same time zone.
    guard = (EXAMPLES / "dev" / "platform.tfvars").read_text()
    assert f'timezone = "{hours["timezone"]}"' in guard
    assert hours["end"] == "0 19 * * 1-5"
    assert 'schedule = "30 19 ? * MON-FRI *"' in guard


def test_production_keeps_a_pod_on_demand_and_room_for_all() -> None:
    documents = render(FACTS, files=(EXAMPLES / "production" / "soloist-values.yaml",))
    values = yaml.safe_load((EXAMPLES / "production" / "soloist-values.yaml").read_text())
    nodes = yaml.safe_load((EXAMPLES / "production" / "soloist-nodes-values.yaml").read_text())
    pods = values["autoscaling"]["maxReplicas"] + values["placement"]["onDemandFloor"]
    assert nodes["maxNodes"] == nodes["limits"]["gpus"] == pods + 1
    (floor,) = [each for each in of_kind(documents, "Deployment") if each["metadata"]["name"] == "soloist-floor"]
    assert floor["spec"]["replicas"] == 1
    assert "gpu-on-demand" in str(floor["spec"]["template"]["spec"]["affinity"])
    assert "gpu-spot" in str(server_pod(documents)["affinity"])


def _monitoring(name: str) -> dict[str, Any]:
    """What the example says to Prometheus' chart; that is empty for one that has no such file."""
    file = EXAMPLES / name / "kube-prometheus-stack-values.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}


def _claimed_gib(name: str) -> float:
    """What Prometheus claims of EBS."""
    if not (said := _monitoring(name)):
        return 0
    claim = said["prometheus"]["prometheusSpec"]["storageSpec"]["volumeClaimTemplate"]["spec"]
    return float(claim["resources"]["requests"]["storage"].removesuffix("Gi"))


def test_production_keeps_what_prometheus_measured() -> None:
    said = _monitoring("production")
    spec = said["prometheus"]["prometheusSpec"]
    (storage,) = said["extraManifests"]
    assert faults([storage]) == []
    claim = spec["storageSpec"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == storage["metadata"]["name"]
    assert (storage["provisioner"], storage["parameters"]["encrypted"]) == ("ebs.csi.aws.com", "true")
    # Bound where the pod is, and emptied before the disk is full. Prometheus' GB is a GiB.
    assert storage["volumeBindingMode"] == "WaitForFirstConsumer"
    assert float(spec["retentionSize"].removesuffix("GB")) <= 0.8 * _claimed_gib("production")
    variables = (EXAMPLES / "production" / "cluster.tfvars").read_text(encoding="utf-8")
    tags = dict(re.findall(r'(?m)^(environment|owner|model) += "(.*)"$', variables))
    assert [value for key, value in sorted(storage["parameters"].items()) if key.startswith("tagSpecification")] == [
        f"{tag}={tags[tag]}" for tag in ("environment", "owner", "model")
    ]


@pytest.mark.parametrize(
    ("name", "spot", "on_demand", "hours"),
    [("dev", 1, 0, {"hours_per_day": 11, "days_per_week": 5}), ("production", 4, 1, {})],
)
def test_the_budget_has_room_for_what_is_asked_for(
    name: str, spot: int, on_demand: int, hours: dict[str, float]
) -> None:
    prices = read_prices()
    month = Traffic(answers_per_day=0, tokens_per_answer=1, prompt_tokens=0, **hours).hours_per_month
    nodes = [("spot", spot), ("on_demand", on_demand)]
    expected = platform_month(prices, name) + sum(
        count * node_month(prices, prices.instances["g5.xlarge"], payment, month) for payment, count in nodes
    )
    budget = next(
        float(line.split("=")[1].split("#")[0])
        for line in (EXAMPLES / name / "platform.tfvars").read_text().splitlines()
        if line.startswith("monthly_budget_usd")
    )
    assert expected < budget < 1.25 * expected


def test_a_node_s_disk_is_the_one_that_is_counted() -> None:
    values = yaml.safe_load((NODES_CHART / "values.yaml").read_text())
    assert values["nodeClass"]["rootVolume"]["size"] == f"{NODE_DISK_GB}Gi"
    assert values["nodeClass"]["rootVolume"]["type"] == "gp3"


@pytest.mark.parametrize("name", NAMES)
def test_each_command_of_the_page_names_what_is_there(name: str) -> None:
    commands = re.findall(r"(?m)^\$ ((?:.*\\\n)*.*)", (EXAMPLES / "README.md").read_text().replace("EXAMPLE", name))
    assert len(commands) == 8
    made = set()
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        folder = TERRAFORM.parent
        if words[0] == "terraform":
            folder /= words[1].removeprefix("-chdir=")
            assert (folder / "versions.tf").exists()
        if ">" in words:
            made.add(words[-1])
            assert f'output "{words[words.index("-json") + 1]}"' in (folder / "outputs.tf").read_text()
        for word in words:
            path = word.removeprefix("-var-file=")
            if path.endswith((".tfvars", ".yaml")) or path.startswith("helm/"):
                assert (folder / path).exists(), path
            elif path.endswith(".json") and ">" not in words:
                assert path in made
