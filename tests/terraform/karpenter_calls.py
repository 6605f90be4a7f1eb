"""Calls of AWS that Karpenter's controller makes, and the same on what is none of its business."""

from __future__ import annotations

from typing import Any

from tests.terraform.applied_cluster import CLUSTER, REGION

# Action, resource, and the condition keys of the request.
Call = tuple[str, str, dict[str, Any]]


def allowed_and_refused(account_id: str) -> tuple[list[Call], list[Call]]:
    """Those that it must be allowed, and those that it must not."""
    roles = f"arn:aws:iam::{account_id}:role/{CLUSTER}"
    ec2 = f"arn:aws:ec2:{REGION}:{account_id}"
    profile = f"arn:aws:iam::{account_id}:instance-profile/mine"
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

    node_role, other_role = f"{roles}-karpenter-node", f"{roles}-cluster"
    queue = f"arn:aws:sqs:{REGION}:{account_id}:{CLUSTER}"
    naming = carries(ours) | {"aws:TagKeys": ["Name", "karpenter.sh/nodeclaim"]}
    allowed: list[Call] = [
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
        ("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{account_id}:cluster/{CLUSTER}", {}),
        ("sqs:ReceiveMessage", queue, {}),
        ("sqs:DeleteMessage", queue, {}),
    ]
    refused: list[Call] = [
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
    return allowed, refused
