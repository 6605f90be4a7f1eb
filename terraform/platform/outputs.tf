# What the charts and the person who fills the bucket need.

output "region" {
  description = "AWS region of everything here."
  value       = var.region
}

output "model_bucket" {
  description = "Bucket that pods stream models from."
  value       = aws_s3_bucket.models.bucket
}

output "model_uri" {
  description = "Where this environment's model belongs."
  value       = local.model_uri

  # Whoever reads it may write there, or lets pods read: only once nobody else can.
  depends_on = [
    aws_s3_bucket_policy.models,
    aws_s3_bucket_public_access_block.models,
    aws_s3_bucket_server_side_encryption_configuration.models,
  ]
}

output "upload_command" {
  description = "Puts a folder in Hugging Face layout where the pods look for it."
  value       = "aws s3 sync --exclude '*.bin' --exclude '*.pt' FOLDER ${local.model_uri}"
}

output "ecr_repository_url" {
  description = "Registry and repository of the image."
  value       = aws_ecr_repository.soloist.repository_url
}

output "soloist_role_arn" {
  description = "IAM role of the pods."
  value       = aws_iam_role.soloist.arn
}

output "service_account" {
  description = "Whose pods get it."
  value       = { namespace = var.namespace, name = var.service_account }
}

output "alerts_topic_arn" {
  description = "SNS topic of spending and idle GPUs. Subscribe what should hear of them."
  value       = aws_sns_topic.alerts.arn
}

output "dashboard_url" {
  description = "The GPUs in CloudWatch."
  value       = "https://${var.region}.console.aws.amazon.com/cloudwatch/home?region=${var.region}#dashboards/dashboard/${aws_cloudwatch_dashboard.gpus.dashboard_name}"
}

output "tags" {
  description = "Tags of everything here."
  value       = local.tags
}

output "soloist_values" {
  description = "Values of the chart helm/soloist that are facts of this account."
  value = {
    image = { repository = aws_ecr_repository.soloist.repository_url }
    model = {
      source = "s3"
      s3     = { uri = local.model_uri, region = var.region }
    }
    serviceAccount = { create = true, name = var.service_account }
  }

  # A pod that starts before these reads nothing.
  depends_on = [aws_eks_pod_identity_association.soloist, aws_iam_role_policy.read_models]
}

locals {
  model_uri = "s3://${aws_s3_bucket.models.bucket}/models/${var.model}"
}
