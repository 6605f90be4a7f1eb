# The second guard of nights without GPUs. The first is in the cluster: the chart's autoscaling.workHours lets KEDA take the
# pods to zero, and Karpenter removes the empty nodes. That stops the bill; this cannot by itself: where pods still ask for
# GPUs, Karpenter starts new nodes, and the alarm of idle GPUs and the budget tell. It is for nodes that something keeps
# without asking for GPUs: a pod that may not be evicted, a Karpenter that is down.

locals {
  night_name = "${var.cluster_name}-night-stop"
  runbook    = "AWS-TerminateEC2Instance"
}

data "aws_iam_policy_document" "night_trust" {
  for_each = toset(["scheduler", "ssm"])

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${each.value}.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account_id]
    }
  }
}

# What the schedule may: start that runbook, with that role.
data "aws_iam_policy_document" "night_scheduler" {
  statement {
    sid     = "StartTheRunbook"
    actions = ["ssm:StartAutomationExecution"]
    # The document is AWS's own, so its name has no account. AWS checked definitions before it checked documents.
    resources = [
      "arn:${local.partition}:ssm:${var.region}::document/${local.runbook}",
      "arn:${local.partition}:ssm:${var.region}:${local.account_id}:automation-execution/*",
      "arn:${local.partition}:ssm:${var.region}:*:automation-definition/${local.runbook}:*",
    ]
  }

  statement {
    sid       = "AsItsRole"
    actions   = ["iam:PassRole"]
    resources = aws_iam_role.night_runbook[*].arn

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ssm.amazonaws.com"]
    }
  }
}

# What the runbook may: look, and terminate what Karpenter started for this cluster in a GPU pool.
data "aws_iam_policy_document" "night_runbook" {
  # checkov:skip=CKV_AWS_356: Describing instances knows no narrower resource, and reads only.
  statement {
    sid       = "SeeInstances"
    actions   = ["ec2:DescribeInstances", "ec2:DescribeInstanceStatus", "tag:GetResources"]
    resources = ["*"]
  }

  statement {
    sid       = "TerminateGpuNodesOfThisCluster"
    actions   = ["ec2:TerminateInstances"]
    resources = ["arn:${local.partition}:ec2:${var.region}:${local.account_id}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "ec2:ResourceTag/kubernetes.io/cluster/${var.cluster_name}"
      values   = ["owned"]
    }

    condition {
      test     = "StringEquals"
      variable = "ec2:ResourceTag/karpenter.sh/nodepool"
      values   = var.gpu_pools
    }
  }
}

resource "aws_iam_role" "night_scheduler" {
  count = var.night_stop.enabled ? 1 : 0

  name               = "${var.cluster_name}-night-schedule"
  description        = "Starts the night stop of ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.night_trust["scheduler"].json
}

resource "aws_iam_role_policy" "night_scheduler" {
  count = var.night_stop.enabled ? 1 : 0

  name   = "start-runbook"
  role   = aws_iam_role.night_scheduler[0].name
  policy = data.aws_iam_policy_document.night_scheduler.json
}

resource "aws_iam_role" "night_runbook" {
  count = var.night_stop.enabled ? 1 : 0

  name               = "${var.cluster_name}-night-runbook"
  description        = "Terminates GPU nodes of ${var.cluster_name} at night"
  assume_role_policy = data.aws_iam_policy_document.night_trust["ssm"].json
}

resource "aws_iam_role_policy" "night_runbook" {
  count = var.night_stop.enabled ? 1 : 0

  name   = "terminate-gpu-nodes"
  role   = aws_iam_role.night_runbook[0].name
  policy = data.aws_iam_policy_document.night_runbook.json
}

resource "aws_scheduler_schedule" "night" {
  # checkov:skip=CKV_AWS_297: What the schedule holds are names of tags, no secret to encrypt with a key of our own.
  count = var.night_stop.enabled ? 1 : 0

  name                         = local.night_name
  description                  = "Terminates the GPU nodes of ${var.cluster_name} that working hours left behind"
  schedule_expression          = "cron(${var.night_stop.schedule})"
  schedule_expression_timezone = var.night_stop.timezone

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = "arn:${local.partition}:scheduler:::aws-sdk:ssm:startAutomationExecution"
    role_arn = aws_iam_role.night_scheduler[0].arn

    input = jsonencode({
      DocumentName        = local.runbook
      Parameters          = { AutomationAssumeRole = aws_iam_role.night_runbook[*].arn }
      TargetParameterName = "InstanceId"
      Targets             = [{ Key = "tag:karpenter.sh/nodepool", Values = var.gpu_pools }]
      MaxConcurrency      = "10"
      MaxErrors           = "100%" # nodes of another cluster are refused, and must not stop the rest
    })
  }

  depends_on = [aws_iam_role_policy.night_scheduler, aws_iam_role_policy.night_runbook]
}
