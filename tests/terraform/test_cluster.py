"""terraform/cluster applied to an emulated AWS from nothing, read back by another tool than Terraform, and destroyed.

Everything that can be chosen is chosen, so that every resource is there.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.aws_emulator import EMULATOR_PYTHON, AwsAccount, AwsEmulator
from tests.terraform import policy_oracle
from tests.terraform.interruption_events import INSTANCE, LEFT, TAKEN
from tests.terraform.inventory import inventory
from tests.terraform.roots import Root, copy_root

# An apply and a destroy are mostly waiting, by the provider, for what takes minutes on a real AWS.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-cluster")]

CLUSTER = "cuda-graph-inference"
REGION = "us-west-2"  # the emulator's other regions have no three zones that EKS takes
TAGS = {"environment": "production", "owner": "platform-team", "model": "llama-3.1-8b"}


@dataclass(slots=True)
class Applied:
    """The root after its apply. `before` is what the account held before."""

    root: Root
    account: AwsAccount
    before: dict[str, list[str]]
    outputs: dict[str, Any]
    destroyed: str | None = field(default=None)

    def client(self, service: str) -> Any:
        return self.account.client(service)

    @property
    def admin(self) -> str:
        return f"arn:aws:iam::{self.account.account_id}:role/platform"

    def role_arn(self, name: str) -> str:
        return f"arn:aws:iam::{self.account.account_id}:role/{CLUSTER}-{name}"

    def destroy(self) -> str:
        """What Terraform said while it destroyed everything; the second time, what it said then."""
        if self.destroyed is None:
            self.destroyed = self.root.destroy()
        return self.destroyed


@pytest.fixture(scope="module")
def applied(terraform: str, aws_emulator: AwsEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    account = aws_emulator.new_account(REGION)
    before = inventory(account)
    root = copy_root(terraform, "cluster", tmp_path_factory.mktemp("cluster"), account)
    root.apply(
        region=REGION,
        **TAGS,
        admin_principal_arns=[f"arn:aws:iam::{account.account_id}:role/platform"],
        interface_endpoints=True,
        ebs_csi_driver=True,
    )
    cluster = Applied(root, account, before, root.outputs())
    yield cluster
    cluster.destroy()


def test_the_cluster_is_as_promised(applied: Applied) -> None:
    cluster = applied.client("eks").describe_cluster(name=CLUSTER)["cluster"]
    assert cluster["version"] == "1.35"
    assert cluster["tags"] == TAGS
    assert cluster["roleArn"] == applied.role_arn("cluster")
    assert cluster["accessConfig"]["authenticationMode"] == "API"
    assert cluster["resourcesVpcConfig"]["endpointPrivateAccess"] is True
    assert cluster["resourcesVpcConfig"]["endpointPublicAccess"] is True
    assert set(cluster["resourcesVpcConfig"]["subnetIds"]) == set(applied.outputs["private_subnet_ids"])
    (encryption,) = cluster["encryptionConfig"]
    assert encryption["resources"] == ["secrets"]
    key = applied.client("kms").describe_key(KeyId=encryption["provider"]["keyArn"])["KeyMetadata"]
    assert key["Enabled"]
    assert applied.client("kms").get_key_rotation_status(KeyId=key["KeyId"])["KeyRotationEnabled"] is True
    (logged,) = [each for each in cluster["logging"]["clusterLogging"] if each["enabled"]]
    assert set(logged["types"]) == {"audit", "authenticator"}


def test_control_plane_logs_have_an_end_and_a_key(applied: Applied) -> None:
    (group,) = applied.client("logs").describe_log_groups()["logGroups"]
    assert group["logGroupName"] == f"/aws/eks/{CLUSTER}/cluster"
    assert group["retentionInDays"] == 30
    assert ":key/" in group["kmsKeyId"]


def test_system_nodes_are_on_demand_and_guard_their_metadata(applied: Applied) -> None:
    eks = applied.client("eks")
    (name,) = eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
    group = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=name)["nodegroup"]
    assert group["capacityType"] == "ON_DEMAND"
    assert group["scalingConfig"] == {"minSize": 2, "desiredSize": 2, "maxSize": 3}
    assert group["labels"] == {"soloist.dev/pool": "system"}
    assert not group.get("taints")
    assert group["nodeRole"] == applied.role_arn("system-node")
    # The emulator's node groups do not say which template they use; there is one.
    ec2 = applied.client("ec2")
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


def test_access_entries_let_nodes_join_and_administrators_in(applied: Applied) -> None:
    eks = applied.client("eks")
    arns = [applied.role_arn("karpenter-node"), applied.admin]
    assert set(arns) <= set(eks.list_access_entries(clusterName=CLUSTER)["accessEntries"])
    nodes, admin = (
        eks.describe_access_entry(clusterName=CLUSTER, principalArn=arn)["accessEntry"]["type"] for arn in arns
    )
    assert (nodes, admin) == ("EC2_LINUX", "STANDARD")
    (policy,) = eks.list_associated_access_policies(clusterName=CLUSTER, principalArn=applied.admin)[
        "associatedAccessPolicies"
    ]
    assert policy["policyArn"].endswith("/AmazonEKSClusterAdminPolicy")
    assert policy["accessScope"]["type"] == "cluster"


def test_addons_are_there(applied: Applied) -> None:
    eks = applied.client("eks")
    assert set(eks.list_addons(clusterName=CLUSTER)["addons"]) == {
        "aws-ebs-csi-driver", "coredns", "eks-pod-identity-agent", "kube-proxy", "metrics-server", "vpc-cni",
    }  # fmt: skip
    network = eks.describe_addon(clusterName=CLUSTER, addonName="vpc-cni")["addon"]
    assert json.loads(network["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_karpenter_gets_its_role_by_pod_identity(applied: Applied) -> None:
    eks = applied.client("eks")
    (listed,) = eks.list_pod_identity_associations(clusterName=CLUSTER, serviceAccount="karpenter")["associations"]
    association = eks.describe_pod_identity_association(clusterName=CLUSTER, associationId=listed["associationId"])[
        "association"
    ]
    assert association["namespace"] == "kube-system"
    assert association["roleArn"] == applied.outputs["karpenter_role_arn"] == applied.role_arn("karpenter")
    role = applied.client("iam").get_role(RoleName=f"{CLUSTER}-karpenter")["Role"]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {
        "aws:RequestTag/eks-cluster-name": CLUSTER,
        "aws:RequestTag/kubernetes-namespace": "kube-system",
        "aws:RequestTag/kubernetes-service-account": "karpenter",
    }


def test_the_queue_is_short_of_memory_and_shut_to_others(applied: Applied) -> None:
    sqs = applied.client("sqs")
    url = sqs.get_queue_url(QueueName=applied.outputs["interruption_queue_name"])["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert int(attributes["MessageRetentionPeriod"]) <= 300
    assert attributes["SqsManagedSseEnabled"] == "true"
    sends, tls = json.loads(attributes["Policy"])["Statement"]
    assert (sends["Effect"], sends["Principal"]) == ("Allow", {"Service": "events.amazonaws.com"})
    rules = {rule["Arn"] for rule in applied.client("events").list_rules()["Rules"]}
    assert set(sends["Condition"]["ArnEquals"]["aws:SourceArn"]) == rules
    assert (tls["Effect"], tls["Action"]) == ("Deny", "sqs:*")
    assert tls["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == TAGS


def test_each_rule_takes_its_own_events_and_no_others(applied: Applied) -> None:
    events = applied.client("events")
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


def test_what_a_rule_takes_arrives_in_the_queue(applied: Applied) -> None:
    """Nobody but AWS may send events of aws.*, so each rule hears a source of ours for a while; its target stays."""
    events, sqs = applied.client("events"), applied.client("sqs")
    url = sqs.get_queue_url(QueueName=applied.outputs["interruption_queue_name"])["QueueUrl"]
    for name, (event, *_) in TAKEN.items():
        rule = f"{CLUSTER}-{name}"
        (target,) = events.list_targets_by_rule(Rule=rule)["Targets"]
        assert target["Arn"] == applied.outputs["interruption_queue_arn"]
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


def test_the_network_is_three_private_zones(applied: Applied) -> None:
    ec2 = applied.client("ec2")
    private, public = (
        ec2.describe_subnets(SubnetIds=applied.outputs[f"{kind}_subnet_ids"])["Subnets"]
        for kind in ("private", "public")
    )
    assert len({subnet["AvailabilityZone"] for subnet in private}) == 3

    def tags(thing: dict[str, Any]) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in thing["Tags"]}

    assert all(tags(subnet)["karpenter.sh/discovery"] == CLUSTER for subnet in private)
    assert all(not subnet["MapPublicIpOnLaunch"] for subnet in private + public)
    assert all("karpenter.sh/discovery" not in tags(subnet) for subnet in public)
    # The group that EKS makes: the emulator makes no more of it than its id, and keeps its tags.
    of_group = {"Name": "resource-id", "Values": [applied.outputs["cluster_security_group_id"]]}
    assert tags(ec2.describe_tags(Filters=[of_group])) == TAGS | {"karpenter.sh/discovery": CLUSTER}
    services = {
        each["ServiceName"].rpartition(f"{REGION}.")[2] for each in ec2.describe_vpc_endpoints()["VpcEndpoints"]
    }
    assert services == {
        "s3", "ecr.api", "ecr.dkr", "sts", "ec2", "sqs", "eks", "eks-auth", "ssm", "logs", "monitoring",
    }  # fmt: skip


def test_everything_that_can_be_tagged_is(applied: Applied) -> None:
    state = json.loads(applied.root.run("show", "-json"))
    resources = state["values"]["root_module"]["resources"]
    taggable = {
        resource["address"]: resource["values"]["tags_all"]
        for resource in resources
        if "tags_all" in resource["values"]
    }
    assert len(taggable) > 40
    assert {address for address, tags in taggable.items() if not TAGS.items() <= (tags or {}).items()} == set()


def test_karpenter_may_do_its_work_and_no_more(applied: Applied) -> None:
    ec2 = f"arn:aws:ec2:{REGION}:{applied.account.account_id}"
    profile = f"arn:aws:iam::{applied.account.account_id}:instance-profile/mine"
    ours = {f"kubernetes.io/cluster/{CLUSTER}": "owned", "karpenter.sh/nodepool": "gpu-spot"}
    theirs = {"kubernetes.io/cluster/another": "owned", "karpenter.sh/nodepool": "gpu-spot"}
    profile_tags = {
        f"kubernetes.io/cluster/{CLUSTER}": "owned",
        "topology.kubernetes.io/region": REGION,
        "karpenter.k8s.aws/ec2nodeclass": "gpu",
    }

    def asks(tags: dict[str, str]) -> dict[str, str]:
        tags = tags | {"eks:eks-cluster-name": CLUSTER}
        return {f"aws:RequestTag/{key}": value for key, value in tags.items()}

    def carries(tags: dict[str, str]) -> dict[str, str]:
        return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}

    node_role, other_role = applied.role_arn("karpenter-node"), applied.role_arn("cluster")
    queue = applied.outputs["interruption_queue_arn"]
    naming = carries(ours) | {"aws:TagKeys": ["Name", "karpenter.sh/nodeclaim"]}
    allowed: list[tuple[str, str, dict[str, Any]]] = [
        ("ec2:CreateLaunchTemplate", f"{ec2}:launch-template/lt-1", asks(ours)),
        ("ec2:CreateFleet", f"{ec2}:fleet/fleet-1", asks(ours)),
        ("ec2:CreateFleet", f"{ec2}:launch-template/lt-1", carries(ours)),
        ("ec2:RunInstances", f"{ec2}:instance/i-1", asks(ours)),
        ("ec2:RunInstances", f"{ec2}:subnet/subnet-1", {}),
        ("ec2:RunInstances", f"arn:aws:ec2:{REGION}::image/ami-1", {}),
        ("ec2:CreateTags", f"{ec2}:instance/i-1", asks(ours) | {"ec2:CreateAction": "CreateFleet"}),
        ("ec2:CreateTags", f"{ec2}:instance/i-1", naming),
        ("ec2:TerminateInstances", f"{ec2}:instance/i-1", carries(ours)),
        ("ec2:DeleteLaunchTemplate", f"{ec2}:launch-template/lt-1", carries(ours)),
        ("ec2:DescribeInstanceTypes", "*", {}),
        ("ssm:GetParameter", f"arn:aws:ssm:{REGION}::parameter/aws/service/eks/optimized-ami/1.35/x", {}),
        ("iam:CreateInstanceProfile", profile, asks(profile_tags)),
        ("iam:AddRoleToInstanceProfile", profile, carries(profile_tags)),
        ("iam:DeleteInstanceProfile", profile, carries(profile_tags)),
        ("iam:PassRole", node_role, {"iam:PassedToService": "ec2.amazonaws.com"}),
        ("eks:DescribeCluster", applied.outputs["cluster_arn"], {}),
        ("sqs:ReceiveMessage", queue, {}),
        ("sqs:DeleteMessage", queue, {}),
    ]
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("ec2:TerminateInstances", f"{ec2}:instance/i-1", {}),
        ("ec2:TerminateInstances", f"{ec2}:instance/i-1", carries(theirs)),
        ("ec2:RunInstances", f"{ec2}:instance/i-1", {}),
        ("ec2:RunInstances", f"{ec2}:instance/i-1", asks(theirs)),
        ("ec2:CreateFleet", f"{ec2}:launch-template/lt-1", carries(theirs)),
        ("ec2:CreateTags", f"{ec2}:instance/i-1", asks(ours)),  # not while launching: would adopt another's node
        ("ec2:CreateTags", f"{ec2}:instance/i-1", carries(ours) | {"aws:TagKeys": ["owner"]}),
        ("iam:PassRole", other_role, {"iam:PassedToService": "ec2.amazonaws.com"}),
        ("iam:PassRole", node_role, {"iam:PassedToService": "lambda.amazonaws.com"}),
        ("iam:AddRoleToInstanceProfile", profile, {}),
        ("iam:CreateRole", node_role, {}),
        ("iam:AttachRolePolicy", node_role, {}),
        ("sqs:ReceiveMessage", f"{queue}-other", {}),
        ("sqs:SendMessage", queue, {}),
        ("s3:GetObject", "arn:aws:s3:::models/x", {}),
    ]
    iam = applied.client("iam")
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


def test_inf_08_access_goes_after_what_needs_it_and_nothing_is_left(applied: Applied) -> None:
    lines = applied.destroy().splitlines()

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
    for kept in ("aws_nat_gateway.this", "aws_route.private_out", "aws_vpc_endpoint.", "aws_iam_role.cluster"):
        assert when("aws_eks_cluster.this", gone) < first(kept, going)
    for kept in ("aws_iam_role_policy_attachment.karpenter_node", "aws_iam_role.karpenter_node"):
        assert when("aws_eks_access_entry.karpenter_nodes", gone) < first(kept, going)
    assert applied.root.state() == []
    assert inventory(applied.account) == applied.before
