"""What a cluster of ours costs a month when nobody asks: every part of terraform/ that is billed for being there."""

from __future__ import annotations

from dataclasses import dataclass

from service.cli.cost.bill import HOURS_PER_MONTH
from service.cli.cost.prices import Prices


@dataclass(frozen=True, slots=True)
class Part:
    """One billed kind of resource.

    Attributes:
        item: its price, below `platform` in the file.
        dev, production: how many units of that price a month, as terraform/examples ask for them.
    """

    what: str
    item: str
    dev: float
    production: float

    def units(self, shape: str) -> float:
        return self.production if shape == "production" else self.dev

    def month(self, prices: Prices, shape: str) -> float:
        """Dollars a month."""
        return self.units(shape) * prices.platform[self.item].usd


SHAPES = ("dev", "production")

_H = HOURS_PER_MONTH
# Of the CloudWatch agent, an assumption: the metrics that AWS lists for a node, 12 pods on it and their containers.
OBSERVATIONS_PER_MINUTE = 600
_OBSERVED = OBSERVATIONS_PER_MINUTE * 60 * _H / 1e6  # millions a month, of one node
PARTS = (
    Part("EKS control plane", "eks_cluster_hour", _H, _H),
    Part("system nodes on demand: 2, and 1 in each of 3 zones", "system_node_hour", 2 * _H, 3 * _H),
    Part("their volumes, 30 GB each, and Prometheus' 50 GB", "gp3_gb_month", 2 * 30, 3 * 30 + 50),
    Part("NAT gateways: 1, and 1 in each of 3 zones", "nat_gateway_hour", _H, 3 * _H),
    Part("public IPv4 addresses of the NAT gateways", "public_ipv4_hour", _H, 3 * _H),
    Part("traffic through NAT, 5 GB", "nat_gateway_gb", 5, 5),
    Part("model bucket, 20 GB", "s3_gb_month", 20, 20),
    Part("images in ECR, 10 GB", "ecr_gb_month", 10, 10),
    Part("CloudWatch alarm of idle GPUs", "cloudwatch_alarm_month", 1, 1),
    Part("CloudWatch dashboard", "cloudwatch_dashboard_month", 1, 1),
    Part("CloudWatch logs of the control plane, 2 GB", "cloudwatch_logs_gb", 2, 2),
    Part("CloudWatch agent on the system nodes", "container_insights_million", 2 * _OBSERVED, 3 * _OBSERVED),
    Part("KMS key of secrets and logs", "kms_key_month", 1, 1),
)

# `interface_endpoints = true` in terraform/cluster: ten services in three zones. Both examples leave them off.
ENDPOINT_HOURS = 10 * 3 * _H

FREE = (
    "VPC, subnets, routes, security groups, the S3 gateway endpoint",
    "IAM roles, Pod Identity associations, access entries",
    "the SQS queue and the EventBridge rules of interruptions, below a million messages a month",
    "AWS Budgets without actions, Cost Anomaly Detection, the SNS topic of their alerts, the night schedule",
    "GPU nodes, since there are none while nobody asks",
)


def platform_month(prices: Prices, shape: str) -> float:
    """Dollars a month of the whole, or 0 for the shape `none`."""
    return sum(part.month(prices, shape) for part in PARTS) if shape in SHAPES else 0.0
