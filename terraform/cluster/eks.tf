# The control plane.

locals {
  # EKS writes to this name, whoever made the group.
  log_group_name = "/aws/eks/${var.cluster_name}/cluster"
}

data "aws_iam_policy_document" "cluster_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["eks.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "cluster" {
  name               = "${var.cluster_name}-cluster"
  description        = "The EKS control plane of ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.cluster_trust.json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonEKSClusterPolicy"
}

# Made here, before EKS would make it: so it has a retention and a key, and goes when the cluster goes.
resource "aws_cloudwatch_log_group" "control_plane" {
  # checkov:skip=CKV_AWS_338: A year of audit logs may cost more than the cluster. log_retention_days decides.
  name              = local.log_group_name
  retention_in_days = var.log_retention_days
  kms_key_id        = aws_kms_key.cluster.arn
}

resource "aws_eks_cluster" "this" {
  # checkov:skip=CKV_AWS_37: control_plane_logs decides: the other three kinds help in debugging, and cost by the gigabyte.
  # checkov:skip=CKV_AWS_38: public_access_cidrs decides; a first apply from a laptop knows no office network yet.
  # checkov:skip=CKV_AWS_39: endpoint_public_access decides; with it off there must be a VPN into the VPC first.
  name                          = var.cluster_name
  version                       = var.kubernetes_version
  role_arn                      = aws_iam_role.cluster.arn
  enabled_cluster_log_types     = sort(var.control_plane_logs)
  bootstrap_self_managed_addons = false # addons.tf installs them, with versions that upgrade

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = var.creator_admin
  }

  encryption_config {
    resources = ["secrets"]

    provider {
      key_arn = aws_kms_key.cluster.arn
    }
  }

  upgrade_policy {
    support_type = var.support_type
  }

  vpc_config {
    subnet_ids              = aws_subnet.private[*].id
    endpoint_private_access = true
    endpoint_public_access  = var.endpoint_public_access
    # Without a public endpoint EKS keeps the widest block; saying another would never settle.
    public_access_cidrs = var.endpoint_public_access ? var.public_access_cidrs : null
  }

  # The last to go: while nodes drain they need the way to AWS, and the control plane its role.
  depends_on = [
    aws_cloudwatch_log_group.control_plane,
    aws_iam_role_policy.cluster_key,
    aws_iam_role_policy_attachment.cluster,
    aws_route.private_out,
    aws_route_table_association.private,
    aws_route_table_association.public,
    aws_vpc_endpoint.interface,
    aws_vpc_endpoint.s3,
    aws_vpc_security_group_ingress_rule.endpoints, # without it the interfaces are there, and nobody gets in
  ]
}

# EKS makes this group itself: control plane and nodes, free among each other. Karpenter's nodes join it by the tag.
resource "aws_ec2_tag" "cluster_security_group" {
  for_each = merge(local.tags, local.discovery_tag)

  resource_id = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  key         = each.key
  value       = each.value
}
