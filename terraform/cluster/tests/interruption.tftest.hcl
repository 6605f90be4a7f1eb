# A node's end is heard of in time, by Karpenter and by nobody else.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner = "platform-team"
}

run "apply" {
  assert {
    condition     = aws_sqs_queue.interruption.message_retention_seconds <= 300
    error_message = "The queue must keep messages for five minutes at most: an old warning would drain a node that lives."
  }

  assert {
    condition     = aws_sqs_queue.interruption.sqs_managed_sse_enabled && aws_sqs_queue.interruption.policy == data.aws_iam_policy_document.interruption_queue.json
    error_message = "The queue must be encrypted at rest, and carry its policy."
  }

  assert {
    condition = (
      toset(keys(aws_cloudwatch_event_rule.interruption)) == toset(["spot-interruption", "rebalance", "state-change", "health", "capacity-reservation"])
      && toset(keys(aws_cloudwatch_event_rule.interruption)) == toset(keys(aws_cloudwatch_event_target.interruption))
    )
    error_message = "There must be five rules, each with a target."
  }

  assert {
    condition     = alltrue([for target in aws_cloudwatch_event_target.interruption : target.arn == aws_sqs_queue.interruption.arn])
    error_message = "Every rule must send to the queue."
  }

  assert {
    condition     = alltrue([for name, target in aws_cloudwatch_event_target.interruption : target.rule == aws_cloudwatch_event_rule.interruption[name].name])
    error_message = "Every target must belong to the rule of its name."
  }

  assert {
    condition     = length(toset([for rule in aws_cloudwatch_event_rule.interruption : rule.name])) == 5
    error_message = "Rules must have names of their own."
  }

  assert {
    condition = (
      data.aws_iam_policy_document.interruption_queue.statement[0].actions == toset(["sqs:SendMessage"])
      && data.aws_iam_policy_document.interruption_queue.statement[0].principals == toset([{ type = "Service", identifiers = toset(["events.amazonaws.com"]) }])
      && one(data.aws_iam_policy_document.interruption_queue.statement[0].condition).variable == "aws:SourceArn"
    )
    error_message = "Only EventBridge may send, and only for these rules."
  }

  assert {
    condition = (
      data.aws_iam_policy_document.interruption_queue.statement[1].effect == "Deny"
      && data.aws_iam_policy_document.interruption_queue.statement[1].actions == toset(["sqs:*"])
      && one(data.aws_iam_policy_document.interruption_queue.statement[1].condition).variable == "aws:SecureTransport"
      && one(data.aws_iam_policy_document.interruption_queue.statement[1].condition).values == tolist(["false"])
    )
    error_message = "Nobody may use the queue without TLS."
  }

  assert {
    condition     = output.interruption_queue_name == "cuda-graph-inference" && output.karpenter_values.settings.interruptionQueue == output.interruption_queue_name
    error_message = "The queue must have the name that Karpenter is told."
  }
}
