"""The destroy of terraform/cluster: in order, and to nothing. It runs after everything that looks at the cluster."""

from __future__ import annotations

import pytest

from tests.terraform.applied_cluster import AppliedCluster
from tests.terraform.inventory import inventory

# One apply for all that look at it, in one worker.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-cluster")]


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
    for kept in ("aws_nat_gateway.this", "aws_route.private_out", "aws_vpc_endpoint.", "aws_iam_role.cluster"):
        assert when("aws_eks_cluster.this", gone) < first(kept, going)
    for kept in ("aws_iam_role_policy_attachment.karpenter_node", "aws_iam_role.karpenter_node"):
        assert when("aws_eks_access_entry.karpenter_nodes", gone) < first(kept, going)
    assert cluster.root.state() == []
    assert inventory(cluster.account) == cluster.before
