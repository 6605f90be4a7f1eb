"""terraform/cluster applied to an emulated AWS, with everything that can be chosen, so that every resource is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.aws_emulator import AwsAccount, AwsEmulator
from tests.terraform.inventory import inventory
from tests.terraform.roots import Root, copy_root

CLUSTER = "cuda-graph-inference"
REGION = "us-west-2"  # the emulator's us-east-1 has no three zones that EKS takes
TAGS = {"environment": "production", "owner": "platform-team", "model": "llama-3.1-8b"}


@dataclass(slots=True)
class AppliedCluster:
    """The root after its apply.

    Attributes:
        before: what the account held before.
        destroyed: what Terraform said while it destroyed everything, once it did.
    """

    root: Root
    account: AwsAccount
    before: dict[str, list[str]]
    outputs: dict[str, Any]
    destroyed: str | None = None

    @property
    def admin(self) -> str:
        """An administrator besides the creator."""
        return admin_of(self.account)

    def client(self, service: str) -> Any:
        return self.account.client(service)

    def role_arn(self, name: str) -> str:
        return f"arn:aws:iam::{self.account.account_id}:role/{CLUSTER}-{name}"

    def destroy(self) -> str:
        """What Terraform said while it destroyed everything. The second time it only repeats that."""
        if self.destroyed is None:
            self.destroyed = self.root.destroy()
        return self.destroyed


def admin_of(account: AwsAccount) -> str:
    return f"arn:aws:iam::{account.account_id}:role/platform"


def apply_cluster(terraform: str, emulator: AwsEmulator, folder: Path) -> AppliedCluster:
    """In an account of its own, from nothing."""
    account = emulator.new_account(REGION)
    before = inventory(account)
    root = copy_root(terraform, "cluster", folder, account)
    root.apply(
        region=REGION, **TAGS, admin_principal_arns=[admin_of(account)], interface_endpoints=True, ebs_csi_driver=True
    )
    return AppliedCluster(root, account, before, root.outputs())
