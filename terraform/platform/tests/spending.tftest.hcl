# Nobody learns of the bill from the bill.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner              = "platform-team"
  monthly_budget_usd = 500
  alert_emails       = ["platform@example.com", "finance@example.com"]
}

run "apply" {
  assert {
    condition = (
      aws_budgets_budget.monthly.limit_amount == "500" && aws_budgets_budget.monthly.limit_unit == "USD"
      && aws_budgets_budget.monthly.time_unit == "MONTHLY" && aws_budgets_budget.monthly.budget_type == "COST"
    )
    error_message = "The budget must be the dollars of a month that were asked for."
  }

  assert {
    condition = toset([
      for alert in aws_budgets_budget.monthly.notification :
      "${alert.notification_type} ${alert.comparison_operator} ${alert.threshold} ${alert.threshold_type}"
    ]) == toset(["ACTUAL GREATER_THAN 80 PERCENTAGE", "FORECASTED GREATER_THAN 100 PERCENTAGE"])
    error_message = "Alerts must come at 80% spent, and when the forecast passes 100%."
  }

  assert {
    condition     = alltrue([for alert in aws_budgets_budget.monthly.notification : alert.subscriber_sns_topic_arns == toset([aws_sns_topic.alerts.arn])])
    error_message = "Each alert must go to the topic."
  }

  assert {
    condition     = toset([for subscription in aws_sns_topic_subscription.email : subscription.endpoint]) == toset(["platform@example.com", "finance@example.com"])
    error_message = "Each address must hear of what the topic hears."
  }

  assert {
    condition = (
      one(data.aws_iam_policy_document.alerts.statement[0].principals).identifiers == toset(["budgets.amazonaws.com", "costalerts.amazonaws.com", "cloudwatch.amazonaws.com"])
      && one(data.aws_iam_policy_document.alerts.statement[0].condition).variable == "aws:SourceAccount"
      && aws_sns_topic_policy.alerts.policy == data.aws_iam_policy_document.alerts.json
    )
    error_message = "Budgets, anomalies and alarms of this account must be able to send to the topic."
  }

  assert {
    condition     = length(aws_budgets_budget.monthly.cost_filter) == 0
    error_message = "By default the budget must count the whole account: nothing is forgotten then."
  }

  assert {
    condition = (
      one(aws_ce_anomaly_monitor.own).monitor_type == "CUSTOM"
      && jsondecode(one(aws_ce_anomaly_monitor.own).monitor_specification).Tags == { Key = "user:environment", MatchOptions = null, Values = ["dev"] }
      && one(aws_ce_anomaly_subscription.alerts).frequency == "IMMEDIATE"
      && one(one(aws_ce_anomaly_subscription.alerts).subscriber).address == aws_sns_topic.alerts.arn
      && one(one(aws_ce_anomaly_subscription.alerts).monitor_arn_list) == one(aws_ce_anomaly_monitor.own).arn
    )
    error_message = "Unusual spending of this environment must be told at once, to the topic, by a monitor of which an account may have many."
  }

  assert {
    condition     = toset(one(one(one(aws_ce_anomaly_subscription.alerts).threshold_expression).dimension).values) == toset(["20"])
    error_message = "Anomalies below 20 dollars must not be told."
  }

  # GPUs that do nothing.

  assert {
    condition = (
      one(aws_cloudwatch_metric_alarm.idle_gpu).comparison_operator == "LessThanThreshold"
      && one(aws_cloudwatch_metric_alarm.idle_gpu).threshold == 1
      && one(aws_cloudwatch_metric_alarm.idle_gpu).evaluation_periods * one(one(aws_cloudwatch_metric_alarm.idle_gpu).metric_query).period == 2 * 3600
      && one(aws_cloudwatch_metric_alarm.idle_gpu).alarm_actions == toset([aws_sns_topic.alerts.arn])
    )
    error_message = "Two hours without work on any GPU must ring."
  }

  assert {
    condition     = one(aws_cloudwatch_metric_alarm.idle_gpu).treat_missing_data == "notBreaching"
    error_message = "No GPU node is no fault: the alarm must be silent at night."
  }

  assert {
    condition     = strcontains(one(one(aws_cloudwatch_metric_alarm.idle_gpu).metric_query).expression, "MAX(node_gpu_utilization)") && strcontains(one(one(aws_cloudwatch_metric_alarm.idle_gpu).metric_query).expression, "'cuda-graph-inference'")
    error_message = "The alarm must look at the busiest GPU of this cluster."
  }

  assert {
    condition = (
      one(aws_eks_addon.agent).addon_name == "amazon-cloudwatch-observability" && one(aws_eks_addon.agent).cluster_name == "cuda-graph-inference"
      && !jsondecode(one(aws_eks_addon.agent).configuration_values).containerLogs.enabled
      && !jsondecode(one(aws_eks_addon.agent).configuration_values).manager.applicationSignals.autoMonitor.monitorAllServices
      && one(aws_eks_pod_identity_association.agent).service_account == "cloudwatch-agent"
      && endswith(one(aws_iam_role_policy_attachment.agent).policy_arn, "/CloudWatchAgentServerPolicy")
    )
    error_message = "The agent must be there with its role, send no pods' logs, and put nothing into pods."
  }

  assert {
    condition = { for condition in data.aws_iam_policy_document.pod_trust["agent"].statement[0].condition : condition.variable => one(condition.values) } == {
      "aws:RequestTag/eks-cluster-name" = "cuda-graph-inference", "aws:RequestTag/kubernetes-namespace" = "amazon-cloudwatch", "aws:RequestTag/kubernetes-service-account" = "cloudwatch-agent"
    }
    error_message = "The agent's role must be for its own service account, and for nobody else."
  }

  assert {
    condition = (
      one(aws_cloudwatch_log_group.agent).name == "/aws/containerinsights/cuda-graph-inference/performance"
      && one(aws_cloudwatch_log_group.agent).retention_in_days == 3
    )
    error_message = "What the agent sends must lie where it writes to, and go after three days."
  }

  assert {
    condition     = length(jsondecode(aws_cloudwatch_dashboard.gpus.dashboard_body).widgets) == 4
    error_message = "The dashboard must show use and memory of the GPUs and the alarm."
  }

  assert {
    condition     = length(aws_scheduler_schedule.night) == 0 && length(aws_iam_role.night_runbook) == 0
    error_message = "Nothing terminates nodes that nobody asked to."
  }
}

run "as_asked" {
  variables {
    budget_covers                 = "tags"
    environment                   = "production"
    anomaly_monitor_arn           = "arn:aws:ce::123456789012:anomalymonitor/11111111-2222-3333-4444-555555555555"
    activate_cost_allocation_tags = true
    gpu_metrics                   = false
    idle_gpu_minutes              = 30
    night_stop                    = { enabled = true, timezone = "Europe/Berlin", schedule = "30 19 ? * MON-FRI *" }
    gpu_pools                     = ["spot", "rest"]
  }

  assert {
    condition = (
      one(aws_budgets_budget.monthly.cost_filter).name == "TagKeyValue"
      && toset(one(aws_budgets_budget.monthly.cost_filter).values) == toset(["user:environment$production"])
    )
    error_message = "A budget of tags must count what carries this environment's."
  }

  assert {
    condition     = length(aws_ce_anomaly_monitor.own) == 0 && one(one(aws_ce_anomaly_subscription.alerts).monitor_arn_list) == var.anomaly_monitor_arn
    error_message = "An existing monitor must be used in place of a second one, which AWS would refuse."
  }

  assert {
    condition     = toset(keys(aws_ce_cost_allocation_tag.this)) == toset(["environment", "owner", "model"])
    error_message = "The three tags must be activated where that is asked for."
  }

  assert {
    condition     = length(aws_eks_addon.agent) == 0 && length(aws_cloudwatch_log_group.agent) == 0 && length(aws_cloudwatch_metric_alarm.idle_gpu) == 0 && length(jsondecode(aws_cloudwatch_dashboard.gpus.dashboard_body).widgets) == 1
    error_message = "Without the agent there must be no alarm that can never ring, and no empty graph."
  }

  # The night.

  assert {
    condition = (
      one(aws_scheduler_schedule.night).schedule_expression == "cron(30 19 ? * MON-FRI *)"
      && one(aws_scheduler_schedule.night).schedule_expression_timezone == "Europe/Berlin"
      && endswith(one(one(aws_scheduler_schedule.night).target).arn, ":aws-sdk:ssm:startAutomationExecution")
      && jsondecode(one(one(aws_scheduler_schedule.night).target).input).Targets[0] == { Key = "tag:karpenter.sh/nodepool", Values = ["spot", "rest"] }
    )
    error_message = "At the asked time, in the asked time zone, the runbook must get the nodes of the GPU pools."
  }

  assert {
    condition = anytrue([
      for statement in data.aws_iam_policy_document.night_runbook.statement :
      statement.actions == toset(["ec2:TerminateInstances"]) && toset([for condition in statement.condition : condition.variable]) == toset(["ec2:ResourceTag/kubernetes.io/cluster/cuda-graph-inference", "ec2:ResourceTag/karpenter.sh/nodepool"])
      && contains([for condition in statement.condition : toset(condition.values)], toset(["spot", "rest"]))
    ])
    error_message = "The runbook must be able to terminate GPU nodes of this cluster, and no other instance."
  }

  assert {
    condition     = { for service, trust in data.aws_iam_policy_document.night_trust : service => one(one(trust.statement[0].principals).identifiers) } == { scheduler = "scheduler.amazonaws.com", ssm = "ssm.amazonaws.com" }
    error_message = "Each role must be for the service that takes it."
  }

  assert {
    condition     = one([for statement in data.aws_iam_policy_document.night_scheduler.statement : statement if contains(statement.actions, "iam:PassRole")]).resources == toset([one(aws_iam_role.night_runbook).arn])
    error_message = "The schedule must be able to pass on that one role."
  }

  # AWS checks the document that is started, which is its own and so of no account, and the execution that begins. What it
  # checked earlier were automation definitions.
  assert {
    condition = one([for statement in data.aws_iam_policy_document.night_scheduler.statement : statement if contains(statement.actions, "ssm:StartAutomationExecution")]).resources == toset([
      "arn:aws:ssm:us-east-1::document/AWS-TerminateEC2Instance",
      "arn:aws:ssm:us-east-1:123456789012:automation-execution/*",
      "arn:aws:ssm:us-east-1:*:automation-definition/AWS-TerminateEC2Instance:*",
    ])
    error_message = "The schedule must be able to start the runbook that it names, by each of the names that AWS checks."
  }
}

# A member account may make no monitor of tags, and one of services.
run "in_a_member_account" {
  command = plan

  variables {
    anomaly_covers = "services"
  }

  assert {
    condition = (
      one(aws_ce_anomaly_monitor.own).monitor_type == "DIMENSIONAL" && one(aws_ce_anomaly_monitor.own).monitor_dimension == "SERVICE"
      && one(aws_ce_anomaly_monitor.own).monitor_specification == null
    )
    error_message = "Who asks for all services must get the monitor of all services."
  }
}

run "without_cost_explorer" {
  command = plan

  variables {
    cost_anomaly_detection = false
  }

  assert {
    condition     = length(aws_ce_anomaly_monitor.own) == 0 && length(aws_ce_anomaly_subscription.alerts) == 0
    error_message = "Where Cost Explorer is not to be had, nothing of it may be asked for."
  }
}
