# AWS says two minutes ahead that a spot node goes. The word travels from EventBridge through this queue to Karpenter, which
# starts the successor and drains the node while it still stands.

locals {
  interruption_queue_arn = "arn:${local.partition}:sqs:${var.region}:${local.account_id}:${var.cluster_name}"

  # Only what Karpenter acts on: a launch or an outage of another service is not worth a message.
  interruptions = {
    spot-interruption = {
      description = "A spot instance goes in two minutes"
      pattern     = { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] }
    }
    rebalance = {
      description = "A spot instance is likelier than others to go"
      pattern     = { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] }
    }
    state-change = {
      description = "An instance stops or ends"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance State-change Notification"]
        detail      = { state = ["stopping", "stopped", "shutting-down", "terminated"] }
      }
    }
    health = {
      description = "AWS plans maintenance of an instance"
      pattern = {
        source      = ["aws.health"]
        detail-type = ["AWS Health Event"]
        detail      = { service = ["EC2"], eventTypeCategory = ["scheduledChange"] }
      }
    }
    capacity-reservation = {
      description = "A capacity reservation takes its instance back"
      pattern     = { source = ["aws.ec2"], detail-type = ["EC2 Capacity Reservation Instance Interruption Warning"] }
    }
  }
}

resource "aws_sqs_queue" "interruption" {
  name                      = var.cluster_name
  message_retention_seconds = 300 # a warning that is older than the node's last two minutes helps nobody
  sqs_managed_sse_enabled   = true
  # Within the queue, so that it is never there without.
  policy = data.aws_iam_policy_document.interruption_queue.json
}

data "aws_iam_policy_document" "interruption_queue" {
  statement {
    sid       = "RulesSend"
    actions   = ["sqs:SendMessage"]
    resources = [local.interruption_queue_arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.interruption : rule.arn]
    }
  }

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [local.interruption_queue_arn]

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

resource "aws_cloudwatch_event_rule" "interruption" {
  for_each = local.interruptions

  name          = "${var.cluster_name}-${each.key}"
  description   = "${each.value.description}: to Karpenter"
  event_pattern = jsonencode(each.value.pattern)
}

resource "aws_cloudwatch_event_target" "interruption" {
  for_each = local.interruptions

  rule      = aws_cloudwatch_event_rule.interruption[each.key].name
  target_id = "karpenter"
  arn       = aws_sqs_queue.interruption.arn
}
