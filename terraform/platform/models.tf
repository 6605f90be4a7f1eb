# The bucket that pods stream their weights from. models/ is what you put there; cache/ is what can be made again.

resource "aws_s3_bucket" "models" {
  # checkov:skip=CKV_AWS_18: An access log of gigabytes that pods read at each start says nothing that CloudTrail does not.
  # checkov:skip=CKV_AWS_144: Weights can be fetched again from where they came from.
  # checkov:skip=CKV_AWS_145: Encrypted with S3's own key: a KMS key of our own would be asked for each part of each file.
  # checkov:skip=CKV2_AWS_62: Nothing has to happen when a model comes.
  # Names of buckets are everybody's, so the account and region are part of it.
  bucket        = "${var.cluster_name}-models-${local.account_id}-${var.region}"
  force_destroy = var.destroy_data

  lifecycle {
    precondition {
      condition     = length("${var.cluster_name}-models-${local.account_id}-${var.region}") <= 63 && var.cluster_name == lower(var.cluster_name)
      error_message = "The bucket's name is made of cluster_name, which must therefore be lower-case and short enough: the whole has at most 63 characters."
    }
  }
}

resource "aws_s3_bucket_public_access_block" "models" {
  bucket                  = aws_s3_bucket.models.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "models" {
  bucket = aws_s3_bucket.models.id

  rule {
    object_ownership = "BucketOwnerEnforced" # no ACLs at all
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "models" {
  bucket = aws_s3_bucket.models.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# A model that is written over under a running server can be had back for a week.
resource "aws_s3_bucket_versioning" "models" {
  bucket = aws_s3_bucket.models.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "models" {
  bucket = aws_s3_bucket.models.id

  rule {
    id     = "stale-caches"
    status = "Enabled"

    filter {
      prefix = "cache/"
    }

    expiration {
      days = var.model_cache_days
    }
  }

  rule {
    id     = "what-nobody-sees"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }

    noncurrent_version_expiration {
      noncurrent_days = 7
    }

    expiration {
      expired_object_delete_marker = true
    }
  }

  # Rules about versions say nothing before there are any.
  depends_on = [aws_s3_bucket_versioning.models]
}

data "aws_iam_policy_document" "models" {
  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.models.arn, "${aws_s3_bucket.models.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "models" {
  bucket = aws_s3_bucket.models.id
  policy = data.aws_iam_policy_document.models.json

  # The block refuses public policies; which this is not, but both at once is a conflict.
  depends_on = [aws_s3_bucket_public_access_block.models]
}
