# Models and images: nobody else reads them, nothing stays that nobody wants, and pods may read and no more.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner              = "platform-team"
  monthly_budget_usd = 500
  alert_emails       = ["platform@example.com"]
}

# All that an empty account has: no cluster, no state of another root.
run "inf_10_first_plan" {
  command = plan

  assert {
    condition     = aws_eks_pod_identity_association.soloist.cluster_name == "cuda-graph-inference"
    error_message = "The cluster must be known by its name alone, so that a plan needs neither it nor -target."
  }
}

run "apply" {
  assert {
    condition     = aws_s3_bucket.models.bucket == "cuda-graph-inference-models-123456789012-us-east-1" && !aws_s3_bucket.models.force_destroy
    error_message = "The bucket's name must be nobody else's, and a bucket with models in it must not be destroyed by default."
  }

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.models.block_public_acls,
      aws_s3_bucket_public_access_block.models.block_public_policy,
      aws_s3_bucket_public_access_block.models.ignore_public_acls,
      aws_s3_bucket_public_access_block.models.restrict_public_buckets,
      one(aws_s3_bucket_ownership_controls.models.rule).object_ownership == "BucketOwnerEnforced",
    ])
    error_message = "No ACL and no policy may make a model public."
  }

  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.models.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "Models must be encrypted at rest."
  }

  assert {
    condition     = one(aws_s3_bucket_versioning.models.versioning_configuration).status == "Enabled"
    error_message = "A model that was written over must be there for a while."
  }

  assert {
    condition = length([
      for rule in aws_s3_bucket_lifecycle_configuration.models.rule : rule
      if rule.id == "stale-caches" && rule.status == "Enabled" && try(rule.filter[0].prefix == "cache/" && rule.expiration[0].days == 30, false)
    ]) == 1
    error_message = "What lies below cache/ must go after 30 days, and nothing else by age."
  }

  assert {
    condition = length([
      for rule in aws_s3_bucket_lifecycle_configuration.models.rule : rule
      if rule.id == "what-nobody-sees" && rule.status == "Enabled" && try(rule.abort_incomplete_multipart_upload[0].days_after_initiation == 1 && rule.noncurrent_version_expiration[0].noncurrent_days == 7, false)
    ]) == 1
    error_message = "Broken uploads must go after a day and old versions after seven: nobody sees them, and both are billed."
  }

  assert {
    condition = anytrue([
      for statement in data.aws_iam_policy_document.models.statement :
      statement.effect == "Deny" && one(statement.condition).variable == "aws:SecureTransport" && length(statement.resources) == 2
    ]) && aws_s3_bucket_policy.models.policy == data.aws_iam_policy_document.models.json
    error_message = "Requests without TLS must be refused, for the bucket and for what is in it."
  }

  # Images.

  assert {
    condition = (
      aws_ecr_repository.soloist.name == "soloist"
      && aws_ecr_repository.soloist.image_tag_mutability == "IMMUTABLE"
      && one(aws_ecr_repository.soloist.image_scanning_configuration).scan_on_push
      && !aws_ecr_repository.soloist.force_delete
    )
    error_message = "A tag must mean one image for good, and every image must be scanned."
  }

  assert {
    condition = (
      jsondecode(aws_ecr_lifecycle_policy.soloist.policy).rules[0].selection.tagStatus == "untagged"
      && jsondecode(aws_ecr_lifecycle_policy.soloist.policy).rules[1].selection.countNumber == 20
    )
    error_message = "Images without a tag must go, and all but the newest 20."
  }

  # Pods.

  assert {
    condition = (
      aws_eks_pod_identity_association.soloist.namespace == "soloist"
      && aws_eks_pod_identity_association.soloist.service_account == "soloist"
      && aws_eks_pod_identity_association.soloist.role_arn == aws_iam_role.soloist.arn
    )
    error_message = "Pods of soloist/soloist must get the role."
  }

  assert {
    condition = (
      toset(flatten([for statement in data.aws_iam_policy_document.read_models.statement : statement.actions])) == toset(["s3:GetObject", "s3:ListBucket"])
      && !contains(flatten([for statement in data.aws_iam_policy_document.read_models.statement : statement.resources]), "*")
    )
    error_message = "Pods must be able to list and read this bucket, and nothing else anywhere."
  }

  assert {
    condition = (
      one(data.aws_iam_policy_document.pod_trust["soloist"].statement[0].principals).identifiers == toset(["pods.eks.amazonaws.com"])
      && { for condition in data.aws_iam_policy_document.pod_trust["soloist"].statement[0].condition : condition.variable => one(condition.values) } == {
        "aws:RequestTag/eks-cluster-name" = "cuda-graph-inference", "aws:RequestTag/kubernetes-namespace" = "soloist", "aws:RequestTag/kubernetes-service-account" = "soloist"
      }
    )
    error_message = "The role must be for pods of this cluster, namespace and service account, and for nobody else."
  }

  # What the chart is given.

  assert {
    condition = (
      output.soloist_values.image.repository == "123456789012.dkr.ecr.us-east-1.amazonaws.com/soloist"
      && output.soloist_values.model == { source = "s3", s3 = { uri = "s3://cuda-graph-inference-models-123456789012-us-east-1/models/smollm2-135m-instruct", region = "us-east-1" } }
      && output.soloist_values.serviceAccount.name == aws_eks_pod_identity_association.soloist.service_account
    )
    error_message = "The chart's values must name this repository, this bucket and this service account."
  }

  # The bill is sorted by tags. A mocked provider adds no default_tags: what carries them is read back from the emulator.

  assert {
    condition     = output.tags == { environment = "dev", owner = "platform-team", model = "smollm2-135m-instruct" }
    error_message = "Everything must carry environment, owner and model."
  }
}

run "as_asked" {
  command = plan

  variables {
    model            = "llama-3.1-8b"
    environment      = "production"
    model_cache_days = 7
    images_kept      = 5
    image_repository = "team/soloist"
    destroy_data     = true
    namespace        = "chat"
    service_account  = "reader"
    tags             = { cost-center = "42" }
  }

  assert {
    condition     = output.tags == { environment = "production", owner = "platform-team", model = "llama-3.1-8b", cost-center = "42" }
    error_message = "Tags must be those that were asked for, and the three."
  }

  assert {
    condition     = aws_s3_bucket.models.force_destroy && aws_ecr_repository.soloist.force_delete && aws_ecr_repository.soloist.name == "team/soloist"
    error_message = "Who asks for it can destroy models and images with the rest."
  }

  assert {
    condition     = aws_eks_pod_identity_association.soloist.namespace == "chat" && aws_eks_pod_identity_association.soloist.service_account == "reader"
    error_message = "Namespace and service account must be those that were asked for."
  }

  assert {
    condition     = jsondecode(aws_ecr_lifecycle_policy.soloist.policy).rules[1].selection.countNumber == 5
    error_message = "As many images must stay as were asked for."
  }
}
