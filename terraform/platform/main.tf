# What is around the cluster: models, images, the rights of the pods, and a bill that nobody has to fear. By subject:
# models.tf, images.tf, pod_identity.tf, spending.tf, gpu_metrics.tf, night.tf.
#
# The cluster is known by its name alone. So this root plans before there is a cluster, and where the other root's state
# lies is none of its business.

provider "aws" {
  region = var.region

  default_tags {
    tags = local.tags
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition

  tags = merge(var.tags, { environment = var.environment, owner = var.owner, model = var.model })
}
