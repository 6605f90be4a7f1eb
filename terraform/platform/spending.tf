# Who is told what a month costs, before it has cost it.

resource "aws_sns_topic" "alerts" {
  # checkov:skip=CKV_AWS_26: AWS Budgets and CloudWatch cannot send to a topic under SNS's own key, and what is sent are sums.
  name = "${var.cluster_name}-alerts"
}

data "aws_iam_policy_document" "alerts" {
  statement {
    sid       = "SpendingAndAlarms"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.alerts.arn]

    principals {
      type        = "Service"
      identifiers = ["budgets.amazonaws.com", "costalerts.amazonaws.com", "cloudwatch.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account_id]
    }
  }
}

resource "aws_sns_topic_policy" "alerts" {
  arn    = aws_sns_topic.alerts.arn
  policy = data.aws_iam_policy_document.alerts.json
}

resource "aws_sns_topic_subscription" "email" {
  for_each = var.alert_emails

  topic_arn = aws_sns_topic.alerts.arn
  protocol  = "email"
  endpoint  = each.value
}

locals {
  # Both at once, so that each is told once for a month. A forecast needs some weeks of history.
  budget_alerts = {
    "80% spent"          = { type = "ACTUAL", threshold = 80 }
    "forecast past 100%" = { type = "FORECASTED", threshold = 100 }
  }
}

resource "aws_budgets_budget" "monthly" {
  name         = "${var.cluster_name}-monthly"
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.monthly_budget_usd)
  limit_unit   = "USD"

  dynamic "cost_filter" {
    for_each = var.budget_covers == "tags" ? [var.environment] : []

    content {
      name   = "TagKeyValue"
      values = [format("user:environment$%s", cost_filter.value)]
    }
  }

  dynamic "notification" {
    for_each = local.budget_alerts

    content {
      comparison_operator       = "GREATER_THAN"
      threshold                 = notification.value.threshold
      threshold_type            = "PERCENTAGE"
      notification_type         = notification.value.type
      subscriber_sns_topic_arns = [aws_sns_topic.alerts.arn]
    }
  }

  depends_on = [aws_sns_topic_policy.alerts] # Budgets tries the topic at once
}

# Of tags an account may have many monitors. Of services it may have one, and new accounts have it from the start.
resource "aws_ce_anomaly_monitor" "own" {
  count = var.cost_anomaly_detection && var.anomaly_monitor_arn == "" ? 1 : 0

  name              = "${var.cluster_name}-${var.anomaly_covers}"
  monitor_type      = var.anomaly_covers == "tags" ? "CUSTOM" : "DIMENSIONAL"
  monitor_dimension = var.anomaly_covers == "tags" ? null : "SERVICE"
  # With what is unset, too: AWS says these as well, and the plan would never settle.
  monitor_specification = var.anomaly_covers == "tags" ? jsonencode({
    And            = null
    CostCategories = null
    Dimensions     = null
    Not            = null
    Or             = null
    Tags           = { Key = "user:environment", MatchOptions = null, Values = [var.environment] }
  }) : null
}

resource "aws_ce_anomaly_subscription" "alerts" {
  count = var.cost_anomaly_detection ? 1 : 0

  name             = "${var.cluster_name}-anomalies"
  frequency        = "IMMEDIATE" # which AWS sends to topics only
  monitor_arn_list = var.anomaly_monitor_arn == "" ? aws_ce_anomaly_monitor.own[*].arn : [var.anomaly_monitor_arn]

  subscriber {
    type    = "SNS"
    address = aws_sns_topic.alerts.arn
  }

  threshold_expression {
    dimension {
      key           = "ANOMALY_TOTAL_IMPACT_ABSOLUTE"
      match_options = ["GREATER_THAN_OR_EQUAL"]
      values        = [tostring(var.anomaly_usd)]
    }
  }

  depends_on = [aws_sns_topic_policy.alerts]
}

resource "aws_ce_cost_allocation_tag" "this" {
  for_each = var.activate_cost_allocation_tags ? toset(["environment", "owner", "model"]) : toset([])

  tag_key = each.value
  status  = "Active"
}
