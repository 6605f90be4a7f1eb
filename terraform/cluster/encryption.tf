# One key of our own: for the secrets in the cluster's store and for the control plane's logs.

data "aws_iam_policy_document" "key" {
  # checkov:skip=CKV_AWS_109: A key's own policy; without its account's root nobody could ever change it again.
  # checkov:skip=CKV_AWS_111: The same.
  # checkov:skip=CKV_AWS_356: In a key's policy "*" is that key.
  statement {
    sid       = "AccountManagesKey"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account_id}:root"]
    }
  }

  statement {
    sid       = "LogsOfThisCluster"
    actions   = ["kms:Encrypt*", "kms:Decrypt*", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${var.region}.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:${local.log_group_name}"]
    }
  }
}

resource "aws_kms_key" "cluster" {
  description         = "Secrets and control-plane logs of the EKS cluster ${var.cluster_name}"
  enable_key_rotation = true
  policy              = data.aws_iam_policy_document.key.json
  # The least that AWS allows: a month of a key that nothing uses costs a dollar.
  deletion_window_in_days = 7
}

resource "aws_kms_alias" "cluster" {
  name          = "alias/eks/${var.cluster_name}"
  target_key_id = aws_kms_key.cluster.key_id
}

data "aws_iam_policy_document" "cluster_key" {
  statement {
    sid       = "SecretsOfThisCluster"
    actions   = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"]
    resources = [aws_kms_key.cluster.arn]
  }
}

resource "aws_iam_role_policy" "cluster_key" {
  name   = "secrets-key"
  role   = aws_iam_role.cluster.name
  policy = data.aws_iam_policy_document.cluster_key.json
}
