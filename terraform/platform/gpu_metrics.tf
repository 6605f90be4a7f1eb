# What the GPUs do, in CloudWatch, and an alarm when they do nothing: a node that idles costs what one at work costs.
# How answers are served is Prometheus' and Grafana's part: helm/soloist brings the dashboards.

resource "aws_iam_role" "agent" {
  count = var.gpu_metrics ? 1 : 0

  name               = "${var.cluster_name}-cloudwatch-agent"
  description        = "CloudWatch agent in ${var.cluster_name}"
  assume_role_policy = data.aws_iam_policy_document.pod_trust["agent"].json
}

resource "aws_iam_role_policy_attachment" "agent" {
  count = var.gpu_metrics ? 1 : 0

  role       = aws_iam_role.agent[0].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/CloudWatchAgentServerPolicy"
}

# Made here, before the agent would make it: so what it sends goes after some days, and the group with the rest.
resource "aws_cloudwatch_log_group" "agent" {
  # checkov:skip=CKV_AWS_158: What lies here are figures of nodes and names of pods, under CloudWatch's own key.
  # checkov:skip=CKV_AWS_338: The metrics made of it stay for 15 months; gpu_metrics_days is for what they are made of.
  count = var.gpu_metrics ? 1 : 0

  name              = "/aws/containerinsights/${var.cluster_name}/performance"
  retention_in_days = var.gpu_metrics_days
}

resource "aws_eks_addon" "agent" {
  count = var.gpu_metrics ? 1 : 0

  cluster_name  = var.cluster_name
  addon_name    = "amazon-cloudwatch-observability"
  addon_version = var.gpu_metrics_addon_version == "" ? null : var.gpu_metrics_addon_version

  configuration_values = jsonencode({
    # What pods log is the cluster's matter, and would be billed by the gigabyte.
    containerLogs = { enabled = false }
    # By itself the add-on puts its instrumentation into every Python pod that starts, ours included.
    manager = { applicationSignals = { autoMonitor = { monitorAllServices = false } } }
  })

  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  # An agent that starts without its role sends nothing. One that is still there would make its log group again.
  depends_on = [aws_cloudwatch_log_group.agent, aws_iam_role_policy_attachment.agent, aws_eks_pod_identity_association.agent]
}

resource "aws_eks_pod_identity_association" "agent" {
  count = var.gpu_metrics ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = local.pods.agent.namespace
  service_account = local.pods.agent.service_account
  role_arn        = aws_iam_role.agent[0].arn
}

locals {
  # By a query, which finds the metric under whatever dimensions the agent's version gives it.
  gpu_use     = "SELECT MAX(node_gpu_utilization) FROM \"ContainerInsights\" WHERE ClusterName = '${var.cluster_name}'"
  gpu_average = "SELECT AVG(node_gpu_utilization) FROM \"ContainerInsights\" WHERE ClusterName = '${var.cluster_name}' GROUP BY NodeName"
  gpu_memory  = "SELECT MAX(node_gpu_memory_utilization) FROM \"ContainerInsights\" WHERE ClusterName = '${var.cluster_name}' GROUP BY NodeName"

  alarm_period_s = 300
}

resource "aws_cloudwatch_metric_alarm" "idle_gpu" {
  count = var.gpu_metrics ? 1 : 0

  alarm_name          = "${var.cluster_name}-idle-gpu"
  alarm_description   = "No GPU of ${var.cluster_name} did anything for ${var.idle_gpu_minutes} minutes, and at least one is there and billed. Look for pods that keep a node: kubectl get pods -A -o wide; at night, see autoscaling.workHours of the chart."
  comparison_operator = "LessThanThreshold"
  threshold           = 1 # percent; a GPU that waits for questions is at 0
  evaluation_periods  = var.idle_gpu_minutes * 60 / local.alarm_period_s
  datapoints_to_alarm = var.idle_gpu_minutes * 60 / local.alarm_period_s
  treat_missing_data  = "notBreaching" # no GPU node: all is well
  alarm_actions       = [aws_sns_topic.alerts.arn]
  ok_actions          = [aws_sns_topic.alerts.arn]

  metric_query {
    id          = "use"
    label       = "busiest GPU, %"
    expression  = local.gpu_use
    period      = local.alarm_period_s
    return_data = true
  }
}

resource "aws_cloudwatch_dashboard" "gpus" {
  dashboard_name = "${var.cluster_name}-gpus"

  dashboard_body = jsonencode({
    widgets = concat(
      [{
        type       = "text"
        x          = 0
        y          = 0
        width      = 24
        height     = 2
        properties = { markdown = "GPUs of **${var.cluster_name}** (${var.environment}, ${var.owner}). How answers are served: Grafana. What they cost: Cost Explorer, by the tags environment, owner and model." }
      }],
      var.gpu_metrics ? [
        for place, widget in [
          { title = "GPU use by node, %", query = local.gpu_average },
          { title = "GPU memory by node, %", query = local.gpu_memory },
          ] : {
          type   = "metric"
          x      = place * 12
          y      = 2
          width  = 12
          height = 7
          properties = {
            title   = widget.title
            region  = var.region
            view    = "timeSeries"
            yAxis   = { left = { min = 0, max = 100 } }
            metrics = [[{ expression = widget.query, id = "q", period = local.alarm_period_s }]]
          }
        }
      ] : [],
      var.gpu_metrics ? [{
        type       = "alarm"
        x          = 0
        y          = 9
        width      = 24
        height     = 2
        properties = { title = "Idle GPUs", alarms = aws_cloudwatch_metric_alarm.idle_gpu[*].arn }
      }] : [],
    )
  })
}
