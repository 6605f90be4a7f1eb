# Pods of one service account may read the model bucket. No key is stored anywhere: EKS Pod Identity hands out the role.

data "aws_iam_policy_document" "pod_trust" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }

    # Neither another cluster of this account nor another service account. EKS tags the session with these.
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/eks-cluster-name"
      values   = [var.cluster_name]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes-namespace"
      values   = [var.namespace]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes-service-account"
      values   = [var.service_account]
    }
  }
}

resource "aws_iam_role" "soloist" {
  name               = "${var.cluster_name}-soloist"
  description        = "Pods of ${var.namespace}/${var.service_account} in ${var.cluster_name}: read models"
  assume_role_policy = data.aws_iam_policy_document.pod_trust.json
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
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.soloist.arn
}
