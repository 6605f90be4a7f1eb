"""What an account holds, service by service: to see that a destroy leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.aws_emulator import AwsAccount


def inventory(account: AwsAccount) -> dict[str, list[str]]:
    """Names of all that the account holds, by kind, in the services that our roots use. Empty kinds are absent."""
    clients: dict[str, Any] = {}

    def client(service: str) -> Any:
        return clients.setdefault(service, account.client(service))

    found = {kind: sorted(list_them(client)) for kind, list_them in _KINDS.items()}
    found["budgets"] = sorted(
        budget["BudgetName"]
        for budget in client("budgets").describe_budgets(AccountId=account.account_id).get("Budgets", [])
    )
    return {kind: names for kind, names in found.items() if names}


Clients = Callable[[str], Any]


def _ec2(call: str, field: str, name: str, gone: tuple[str, ...] = ()) -> Callable[[Clients], list[str]]:
    def listed(client: Clients) -> list[str]:
        things = getattr(client("ec2"), call)()[field]
        return [thing[name] for thing in things if thing.get("State") not in gone]

    return listed


def _keys(client: Clients) -> list[str]:
    kms = client("kms")
    keys = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]]
    # AWS deletes no key at once: one that waits for its end costs nothing and can do nothing.
    return [key["KeyId"] for key in keys if key["KeyState"] != "PendingDeletion"]


_KINDS: dict[str, Callable[[Clients], list[str]]] = {
    "vpcs": _ec2("describe_vpcs", "Vpcs", "VpcId"),
    "subnets": _ec2("describe_subnets", "Subnets", "SubnetId"),
    "route tables": _ec2("describe_route_tables", "RouteTables", "RouteTableId"),
    "internet gateways": _ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    "nat gateways": _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId", gone=("deleted", "deleting")),
    "addresses": _ec2("describe_addresses", "Addresses", "AllocationId"),
    "endpoints": _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", gone=("deleted", "deleting")),
    "security groups": _ec2("describe_security_groups", "SecurityGroups", "GroupId"),
    "interfaces": _ec2("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    "launch templates": _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "volumes": _ec2("describe_volumes", "Volumes", "VolumeId"),
    "clusters": lambda client: client("eks").list_clusters()["clusters"],
    "roles": lambda client: [role["RoleName"] for role in client("iam").list_roles()["Roles"]],
    "policies": lambda client: [policy["Arn"] for policy in client("iam").list_policies(Scope="Local")["Policies"]],
    "instance profiles": lambda client: [
        profile["InstanceProfileName"] for profile in client("iam").list_instance_profiles()["InstanceProfiles"]
    ],
    "queues": lambda client: client("sqs").list_queues().get("QueueUrls", []),
    "rules": lambda client: [rule["Name"] for rule in client("events").list_rules()["Rules"]],
    "keys": _keys,
    "key aliases": lambda client: [
        alias["AliasName"]
        for alias in client("kms").list_aliases()["Aliases"]
        if not alias["AliasName"].startswith("alias/aws/")
    ],
    "log groups": lambda client: [group["logGroupName"] for group in client("logs").describe_log_groups()["logGroups"]],
    "alarms": lambda client: [
        alarm["AlarmName"] for alarm in client("cloudwatch").describe_alarms().get("MetricAlarms", [])
    ],
    "dashboards": lambda client: [
        board["DashboardName"] for board in client("cloudwatch").list_dashboards().get("DashboardEntries", [])
    ],
    "topics": lambda client: [topic["TopicArn"] for topic in client("sns").list_topics()["Topics"]],
    "buckets": lambda client: [bucket["Name"] for bucket in client("s3").list_buckets()["Buckets"]],
    "repositories": lambda client: [
        repository["repositoryName"] for repository in client("ecr").describe_repositories()["repositories"]
    ],
}
