"""What terraform/cluster made in an emulated AWS, read back by another tool than Terraform."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helm.rendering import NODES_CHART, of_kind, render, the
from tests.helm.validation import faults
from tests.terraform.applied_cluster import CLUSTER, REGION, TAGS, AppliedCluster

# One apply for all that look at it, in one worker.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-cluster")]


def test_the_cluster_is_as_promised(cluster: AppliedCluster) -> None:
    made = cluster.client("eks").describe_cluster(name=CLUSTER)["cluster"]
    assert made["version"] == "1.35"
    assert made["tags"] == TAGS
    assert made["roleArn"] == cluster.role_arn("cluster")
    assert made["accessConfig"]["authenticationMode"] == "API"
    assert made["resourcesVpcConfig"]["endpointPrivateAccess"] is True
    assert made["resourcesVpcConfig"]["endpointPublicAccess"] is True
    assert set(made["resourcesVpcConfig"]["subnetIds"]) == set(cluster.outputs["private_subnet_ids"])
    (encryption,) = made["encryptionConfig"]
    assert encryption["resources"] == ["secrets"]
    key = cluster.client("kms").describe_key(KeyId=encryption["provider"]["keyArn"])["KeyMetadata"]
    assert key["Enabled"]
    assert cluster.client("kms").get_key_rotation_status(KeyId=key["KeyId"])["KeyRotationEnabled"] is True
    (logged,) = [each for each in made["logging"]["clusterLogging"] if each["enabled"]]
    assert set(logged["types"]) == {"audit", "authenticator"}


def test_control_plane_logs_have_an_end_and_a_key(cluster: AppliedCluster) -> None:
    (group,) = cluster.client("logs").describe_log_groups()["logGroups"]
    assert group["logGroupName"] == f"/aws/eks/{CLUSTER}/cluster"
    assert group["retentionInDays"] == 30
    assert ":key/" in group["kmsKeyId"]


def test_system_nodes_are_on_demand_and_guard_their_metadata(cluster: AppliedCluster) -> None:
    eks = cluster.client("eks")
    (name,) = eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
    group = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=name)["nodegroup"]
    assert group["capacityType"] == "ON_DEMAND"
    assert group["scalingConfig"] == {"minSize": 2, "desiredSize": 2, "maxSize": 3}
    assert group["labels"] == {"soloist.dev/pool": "system"}
    assert not group.get("taints")
    assert group["nodeRole"] == cluster.role_arn("system-node")
    # The emulator's node groups do not say which template they use; there is one.
    ec2 = cluster.client("ec2")
    (listed,) = ec2.describe_launch_templates()["LaunchTemplates"]
    (version,) = ec2.describe_launch_template_versions(
        LaunchTemplateId=listed["LaunchTemplateId"], Versions=["$Default"]
    )["LaunchTemplateVersions"]
    template = version["LaunchTemplateData"]
    assert template["MetadataOptions"]["HttpTokens"] == "required"
    assert template["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert [mapping["Ebs"]["Encrypted"] for mapping in template["BlockDeviceMappings"]] == [True]
    tagged = {
        each["ResourceType"]: {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        for each in template["TagSpecifications"]
    }
    assert set(tagged) == {"instance", "volume", "network-interface"}
    assert all(TAGS.items() <= tags.items() for tags in tagged.values())


def test_access_entries_let_nodes_join_and_administrators_in(cluster: AppliedCluster) -> None:
    eks = cluster.client("eks")
    arns = [cluster.role_arn("karpenter-node"), cluster.admin]
    assert set(arns) <= set(eks.list_access_entries(clusterName=CLUSTER)["accessEntries"])
    nodes, admin = (
        eks.describe_access_entry(clusterName=CLUSTER, principalArn=arn)["accessEntry"]["type"] for arn in arns
    )
    assert (nodes, admin) == ("EC2_LINUX", "STANDARD")
    (policy,) = eks.list_associated_access_policies(clusterName=CLUSTER, principalArn=cluster.admin)[
        "associatedAccessPolicies"
    ]
    assert policy["policyArn"].endswith("/AmazonEKSClusterAdminPolicy")
    assert policy["accessScope"]["type"] == "cluster"


def test_addons_are_there(cluster: AppliedCluster) -> None:
    eks = cluster.client("eks")
    assert set(eks.list_addons(clusterName=CLUSTER)["addons"]) == {
        "aws-ebs-csi-driver", "coredns", "eks-pod-identity-agent", "kube-proxy", "metrics-server", "vpc-cni",
    }  # fmt: skip
    network = eks.describe_addon(clusterName=CLUSTER, addonName="vpc-cni")["addon"]
    assert json.loads(network["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_karpenter_gets_its_role_by_pod_identity(cluster: AppliedCluster) -> None:
    eks = cluster.client("eks")
    (listed,) = eks.list_pod_identity_associations(clusterName=CLUSTER, serviceAccount="karpenter")["associations"]
    association = eks.describe_pod_identity_association(clusterName=CLUSTER, associationId=listed["associationId"])[
        "association"
    ]
    assert association["namespace"] == "kube-system"
    assert association["roleArn"] == cluster.outputs["karpenter_role_arn"] == cluster.role_arn("karpenter")
    role = cluster.client("iam").get_role(RoleName=f"{CLUSTER}-karpenter")["Role"]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {
        "aws:RequestTag/eks-cluster-name": CLUSTER,
        "aws:RequestTag/kubernetes-namespace": "kube-system",
        "aws:RequestTag/kubernetes-service-account": "karpenter",
    }


def test_the_network_is_three_private_zones(cluster: AppliedCluster) -> None:
    ec2 = cluster.client("ec2")
    private, public = (
        ec2.describe_subnets(SubnetIds=cluster.outputs[f"{kind}_subnet_ids"])["Subnets"]
        for kind in ("private", "public")
    )
    assert len({subnet["AvailabilityZone"] for subnet in private}) == 3

    def tags(thing: dict[str, Any]) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in thing["Tags"]}

    assert all(tags(subnet)["karpenter.sh/discovery"] == CLUSTER for subnet in private)
    assert all(not subnet["MapPublicIpOnLaunch"] for subnet in private + public)
    assert all("karpenter.sh/discovery" not in tags(subnet) for subnet in public)
    # The group that EKS makes: the emulator makes no more of it than its id, and keeps its tags.
    of_group = {"Name": "resource-id", "Values": [cluster.outputs["cluster_security_group_id"]]}
    assert tags(ec2.describe_tags(Filters=[of_group])) == TAGS | {"karpenter.sh/discovery": CLUSTER}
    services = {
        each["ServiceName"].rpartition(f"{REGION}.")[2] for each in ec2.describe_vpc_endpoints()["VpcEndpoints"]
    }
    assert services == {
        "s3", "ecr.api", "ecr.dkr", "sts", "ec2", "sqs", "eks", "eks-auth", "ssm", "logs", "monitoring",
    }  # fmt: skip


def test_everything_that_can_be_tagged_is(cluster: AppliedCluster) -> None:
    state = json.loads(cluster.root.run("show", "-json"))
    resources = state["values"]["root_module"]["resources"]
    taggable = {
        resource["address"]: resource["values"]["tags_all"]
        for resource in resources
        if "tags_all" in resource["values"]
    }
    assert len(taggable) > 40
    assert {address for address, tags in taggable.items() if not TAGS.items() <= (tags or {}).items()} == set()


def test_the_nodes_chart_takes_what_terraform_says(cluster: AppliedCluster) -> None:
    """Names, tags, role and queue are the same on both sides, and nothing that the chart renders is refused."""
    documents = render(cluster.outputs["soloist_nodes_values"], chart=NODES_CHART)
    assert faults(documents) == []
    spec = the(documents, "EC2NodeClass")["spec"]
    assert spec["role"] == cluster.outputs["node_role_name"]
    cluster.client("iam").get_role(RoleName=spec["role"])
    by_tag = [{"tags": cluster.outputs["discovery_tag"]}]
    assert (spec["subnetSelectorTerms"], spec["securityGroupSelectorTerms"]) == (by_tag, by_tag)
    assert TAGS.items() <= spec["tags"].items()
    # As Karpenter would look for them.
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in by_tag[0]["tags"].items()]
    found = cluster.client("ec2").describe_subnets(Filters=filters)["Subnets"]
    assert {subnet["SubnetId"] for subnet in found} == set(cluster.outputs["private_subnet_ids"])
    pools = {
        pool["spec"]["template"]["metadata"]["labels"]["soloist.dev/pool"] for pool in of_kind(documents, "NodePool")
    }
    assert pools == {"gpu-spot", "gpu-on-demand"}
    settings = cluster.outputs["karpenter_values"]["settings"]
    assert settings["clusterName"] == CLUSTER
    assert settings["interruptionQueue"] == cluster.outputs["interruption_queue_name"]
