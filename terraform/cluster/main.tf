# From an empty account to an EKS cluster that Karpenter can fill with GPU nodes. By subject: vpc.tf, endpoints.tf,
# encryption.tf, eks.tf, access.tf, addons.tf, system_nodes.tf, karpenter.tf, karpenter_policy.tf, interruption.tf.

provider "aws" {
  region = var.region

  default_tags {
    tags = local.tags
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_availability_zones" "available" {
  # checkov:skip=CKV_AWS_394: A zone that AWS adds comes after those there by name, and three are taken. zones pins them.
  state = "available"

  # Neither local zones nor those that must be asked for.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }

  # EKS puts no control plane there.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]
}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition

  # Instances and volumes that other services start do not get default_tags: launch templates and Karpenter's node class
  # carry these too.
  tags = merge(var.tags, { environment = var.environment, owner = var.owner, model = var.model })

  # What Karpenter finds subnets and security groups by.
  discovery_tag = { "karpenter.sh/discovery" = var.cluster_name }

  usable_zones = data.aws_availability_zones.available.names
  zones        = length(var.zones) == 3 ? var.zones : slice(local.usable_zones, 0, min(3, length(local.usable_zones)))
}
