# Karpenter's side of AWS: the role of its nodes, and the role of its controller with the service account that gets it.

locals {
  karpenter_namespace       = "kube-system"
  karpenter_service_account = "karpenter"
}

resource "aws_iam_role" "karpenter_node" {
  name               = "${var.cluster_name}-karpenter-node"
  description        = "GPU nodes that Karpenter starts for ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.node_trust.json
}

resource "aws_iam_role_policy_attachment" "karpenter_node" {
  for_each = local.node_policies

  role       = aws_iam_role.karpenter_node.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/${each.value}"
}

data "aws_iam_policy_document" "karpenter_trust" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }

    # EKS Pod Identity says whom it asks for. An association made by mistake elsewhere gets nothing.
    dynamic "condition" {
      for_each = {
        eks-cluster-name           = var.cluster_name
        kubernetes-namespace       = local.karpenter_namespace
        kubernetes-service-account = local.karpenter_service_account
      }

      content {
        test     = "StringEquals"
        variable = "aws:RequestTag/${condition.key}"
        values   = [condition.value]
      }
    }
  }
}

resource "aws_iam_role" "karpenter" {
  name               = "${var.cluster_name}-karpenter"
  description        = "Karpenter's controller in ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.karpenter_trust.json
}

resource "aws_eks_pod_identity_association" "karpenter" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = local.karpenter_namespace
  service_account = local.karpenter_service_account
  role_arn        = aws_iam_role.karpenter.arn

  depends_on = [aws_iam_role_policy_attachment.karpenter]
}
