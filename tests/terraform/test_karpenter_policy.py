"""What Karpenter's controller may do: the policies as they are attached, put to an evaluator of IAM's."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.aws_emulator import EMULATOR_PYTHON
from tests.terraform import policy_oracle
from tests.terraform.applied_cluster import CLUSTER, REGION, AppliedCluster

# One apply for all that look at it, in one worker.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-cluster")]


def test_karpenter_may_do_its_work_and_no_more(cluster: AppliedCluster) -> None:
    ec2 = f"arn:aws:ec2:{REGION}:{cluster.account.account_id}"
    profile = f"arn:aws:iam::{cluster.account.account_id}:instance-profile/mine"
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

    node_role, other_role = cluster.role_arn("karpenter-node"), cluster.role_arn("cluster")
    queue = cluster.outputs["interruption_queue_arn"]
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
        ("eks:DescribeCluster", cluster.outputs["cluster_arn"], {}),
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
