# A few small on-demand nodes for what must never be interrupted: Karpenter itself, CoreDNS, KEDA, Prometheus, the gateway.
# They carry no taint. GPU nodes do, so nothing of this strays there, and a pod without tolerations always has a place.

data "aws_iam_policy_document" "node_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

locals {
  # What a node itself needs; pods have roles of their own.
  node_policies = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore"])
}

resource "aws_iam_role" "system_node" {
  name               = "${var.cluster_name}-system-node"
  description        = "System nodes of ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.node_trust.json
}

resource "aws_iam_role_policy_attachment" "system_node" {
  for_each = local.node_policies

  role       = aws_iam_role.system_node.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/${each.value}"
}

resource "aws_launch_template" "system_node" {
  name_prefix            = "${var.cluster_name}-system-"
  description            = "System nodes of ${var.cluster_name}"
  update_default_version = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required" # IMDSv2
    http_put_response_hop_limit = 1          # the node reads its metadata, pods do not
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_type           = "gp3"
      volume_size           = var.system_node_disk_gib
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${var.cluster_name}-system" })
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_eks_node_group" "system" {
  cluster_name           = aws_eks_cluster.this.name
  node_group_name_prefix = "system-"
  node_role_arn          = aws_iam_role.system_node.arn
  subnet_ids             = aws_subnet.private[*].id
  version                = var.kubernetes_version
  ami_type               = "AL2023_x86_64_STANDARD"
  capacity_type          = "ON_DEMAND"
  instance_types         = [var.system_node_type]
  labels                 = { "soloist.dev/pool" = "system" }

  launch_template {
    id      = aws_launch_template.system_node.id
    version = aws_launch_template.system_node.latest_version
  }

  scaling_config {
    min_size     = var.system_nodes
    desired_size = var.system_nodes
    max_size     = var.system_nodes + 1 # room for one while another is replaced
  }

  update_config {
    max_unavailable = 1
  }

  lifecycle {
    create_before_destroy = true
  }

  depends_on = [
    aws_eks_access_policy_association.admin,
    aws_eks_addon.node,
    aws_iam_role_policy_attachment.system_node,
  ]
}
