"""What terraform/cluster made in an emulated AWS, read back by another tool than Terraform; and at last its destroy.

One file, since the tests of one file share a worker, and so one apply.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.aws_emulator import EMULATOR_PYTHON
from tests.helm.rendering import NODES_CHART, of_kind, render, the
from tests.helm.validation import faults
from tests.terraform import policy_oracle
from tests.terraform.applied_cluster import CLUSTER, REGION, TAGS, AppliedCluster
from tests.terraform.interruption_events import INSTANCE, LEFT, TAKEN
from tests.terraform.inventory import inventory
from tests.terraform.karpenter_calls import allowed_and_refused

# An apply and a destroy are mostly waiting, by the provider, for what takes minutes on a real AWS.
pytestmark = [pytest.mark.early, pytest.mark.timeout(400)]


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


def test_the_queue_is_short_of_memory_and_shut_to_others(cluster: AppliedCluster) -> None:
    sqs = cluster.client("sqs")
    url = sqs.get_queue_url(QueueName=cluster.outputs["interruption_queue_name"])["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert int(attributes["MessageRetentionPeriod"]) <= 300
    assert attributes["SqsManagedSseEnabled"] == "true"
    sends, tls = json.loads(attributes["Policy"])["Statement"]
    assert (sends["Effect"], sends["Principal"]) == ("Allow", {"Service": "events.amazonaws.com"})
    rules = {rule["Arn"] for rule in cluster.client("events").list_rules()["Rules"]}
    assert set(sends["Condition"]["ArnEquals"]["aws:SourceArn"]) == rules
    assert (tls["Effect"], tls["Action"]) == ("Deny", "sqs:*")
    assert tls["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == TAGS


def test_each_rule_takes_its_own_events_and_no_others(cluster: AppliedCluster) -> None:
    events = cluster.client("events")
    patterns = {rule["Name"].removeprefix(f"{CLUSTER}-"): rule["EventPattern"] for rule in events.list_rules()["Rules"]}
    assert set(patterns) == set(TAKEN)

    def takers(event: dict[str, Any]) -> list[str]:
        return [
            name
            for name, pattern in patterns.items()
            if events.test_event_pattern(EventPattern=pattern, Event=json.dumps(event))["Result"]
        ]

    for name, taken in TAKEN.items():
        assert [takers(event) for event in taken] == [[name]] * len(taken)
    assert [takers(event) for event in LEFT] == [[]] * len(LEFT)


def test_what_a_rule_takes_arrives_in_the_queue(cluster: AppliedCluster) -> None:
    """Nobody but AWS may send events of aws.*, so each rule hears a source of ours for a while; its target stays."""
    events, sqs = cluster.client("events"), cluster.client("sqs")
    url = sqs.get_queue_url(QueueName=cluster.outputs["interruption_queue_name"])["QueueUrl"]
    for name, (event, *_) in TAKEN.items():
        rule = f"{CLUSTER}-{name}"
        (target,) = events.list_targets_by_rule(Rule=rule)["Targets"]
        assert target["Arn"] == cluster.outputs["interruption_queue_arn"]
        pattern = events.describe_rule(Name=rule)["EventPattern"]
        drill = json.dumps(json.loads(pattern) | {"source": ["soloist.drill"]})
        events.put_rule(Name=rule, EventPattern=drill)
        sent = {"Source": "soloist.drill", "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
        assert events.put_events(Entries=[sent])["FailedEntryCount"] == 0
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        events.put_rule(Name=rule, EventPattern=pattern)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        body = json.loads(message["Body"])
        assert (body["detail-type"], body["detail"]) == (event["detail-type"], event["detail"])
        assert INSTANCE in message["Body"]


def test_karpenter_may_do_its_work_and_no_more(cluster: AppliedCluster) -> None:
    """The policies as they are attached, put to an evaluator of IAM's."""
    allowed, refused = allowed_and_refused(cluster.account.account_id)
    iam = cluster.client("iam")
    attached = iam.list_attached_role_policies(RoleName=f"{CLUSTER}-karpenter")["AttachedPolicies"]
    documents = [
        iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId="v1")["PolicyVersion"]["Document"]
        for each in attached
    ]
    assert len(documents) == 4
    # IAM takes no larger ones; it counts no white space.
    assert max(len(re.sub(r"\s", "", json.dumps(document))) for document in documents) <= 6144
    calls = [
        {"action": action, "resource": resource, "region": REGION, "keys": keys}
        for action, resource, keys in allowed + refused
    ]
    decided = subprocess.run(
        [EMULATOR_PYTHON, policy_oracle.__file__],
        input=json.dumps({"policies": documents, "calls": calls}),
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    verdicts = list(zip(json.loads(decided), allowed + refused, strict=True))
    assert [call for verdict, call in verdicts[: len(allowed)] if verdict != "Allow"] == []
    assert [call for verdict, call in verdicts[len(allowed) :] if verdict == "Allow"] == []


def test_inf_08_access_goes_after_what_needs_it_and_nothing_is_left(cluster: AppliedCluster) -> None:
    lines = cluster.destroy().splitlines()

    def when(address: str, what: str) -> int:
        """The last line that says so of the address, or of one of its instances."""
        return max(number for number, line in enumerate(lines) if line.startswith(address) and what in line)

    def first(address: str, what: str) -> int:
        return min(number for number, line in enumerate(lines) if line.startswith(address) and what in line)

    gone, going = "Destruction complete", "Destroying..."
    in_cluster = ("aws_eks_node_group.system", "aws_eks_addon.cluster", "aws_eks_addon.node", "aws_eks_addon.ebs_csi")
    access = ("aws_eks_access_policy_association.admin", "aws_eks_access_entry.admin", "aws_eks_access_entry.karpenter")
    for thing in in_cluster:
        for entry in access:
            assert when(thing, gone) < first(entry, going), f"{entry} went before {thing}"
    for entry in access:
        assert when(entry, gone) < first("aws_eks_cluster.this", going)
    # Nodes drain over the network, and the control plane takes its interfaces back as its role.
    network = ("aws_nat_gateway.this", "aws_route.private_out", "aws_vpc_endpoint.")
    for kept in (*network, "aws_vpc_security_group_ingress_rule.endpoints", "aws_iam_role.cluster"):
        assert when("aws_eks_cluster.this", gone) < first(kept, going)
    for kept in ("aws_iam_role_policy_attachment.karpenter_node", "aws_iam_role.karpenter_node"):
        assert when("aws_eks_access_entry.karpenter_nodes", gone) < first(kept, going)
    assert cluster.root.state() == []
    assert inventory(cluster.account) == cluster.before
