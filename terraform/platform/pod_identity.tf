# Pods of one service account may read the model bucket. No key is stored anywhere: EKS Pod Identity hands out the role.

locals {
  # Who may take a role by EKS Pod Identity, in this cluster.
  pods = {
    soloist = { namespace = var.namespace, service_account = var.service_account }
    agent   = { namespace = "amazon-cloudwatch", service_account = "cloudwatch-agent" }
  }
}

data "aws_iam_policy_document" "pod_trust" {
  for_each = local.pods

  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }

    # Neither another cluster of this account nor another service account. EKS tags the session with these.
    dynamic "condition" {
      for_each = {
        eks-cluster-name           = var.cluster_name
        kubernetes-namespace       = each.value.namespace
        kubernetes-service-account = each.value.service_account
      }

      content {
        test     = "StringEquals"
        variable = "aws:RequestTag/${condition.key}"
        values   = [condition.value]
      }
    }
  }
}

resource "aws_iam_role" "soloist" {
  name               = "${var.cluster_name}-soloist"
  description        = "Pods of ${var.namespace}/${var.service_account} in ${var.cluster_name}: read models"
  assume_role_policy = data.aws_iam_policy_document.pod_trust["soloist"].json
}

data "aws_iam_policy_document" "read_models" {
  statement {
    sid       = "ListModels"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.models.arn]
  }

  statement {
    sid       = "ReadModels"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.models.arn}/*"]
  }
}

resource "aws_iam_role_policy" "read_models" {
  name   = "read-models"
  role   = aws_iam_role.soloist.name
  policy = data.aws_iam_policy_document.read_models.json
}

resource "aws_eks_pod_identity_association" "soloist" {
  cluster_name    = var.cluster_name
  namespace       = local.pods.soloist.namespace
  service_account = local.pods.soloist.service_account
  role_arn        = aws_iam_role.soloist.arn
}
