# An AWS that never was: what a provider would compute, in the form that the other resources insist on.

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_availability_zones" {
  defaults = { names = ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d"] }
}

# What a document says is looked at in its statements.
mock_data "aws_iam_policy_document" {
  defaults = { json = "{}" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}

mock_resource "aws_iam_policy" {
  defaults = { arn = "arn:aws:iam::123456789012:policy/mocked" }
}

mock_resource "aws_kms_key" {
  defaults = {
    arn    = "arn:aws:kms:us-east-1:123456789012:key/mocked"
    key_id = "mocked"
  }
}

mock_resource "aws_sqs_queue" {
  defaults = {
    arn = "arn:aws:sqs:us-east-1:123456789012:mocked"
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/mocked"
  }
}

mock_resource "aws_cloudwatch_event_rule" {
  defaults = { arn = "arn:aws:events:us-east-1:123456789012:rule/mocked" }
}

mock_resource "aws_launch_template" {
  defaults = {
    id             = "lt-0123456789abcdef0"
    latest_version = 1
  }
}

mock_resource "aws_eks_cluster" {
  defaults = {
    arn      = "arn:aws:eks:us-east-1:123456789012:cluster/mocked"
    endpoint = "https://mocked.eks.amazonaws.com"
    certificate_authority = [{
      data = "bW9ja2Vk"
    }]
  }
}
