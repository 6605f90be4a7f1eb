# An AWS that never was: what a provider would compute, in the form that the other resources insist on.

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

# What a document says is looked at in its statements.
mock_data "aws_iam_policy_document" {
  defaults = { json = "{}" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}

mock_resource "aws_s3_bucket" {
  defaults = { arn = "arn:aws:s3:::mocked" }
}

mock_resource "aws_sns_topic" {
  defaults = { arn = "arn:aws:sns:us-east-1:123456789012:mocked" }
}

mock_resource "aws_ecr_repository" {
  defaults = { repository_url = "123456789012.dkr.ecr.us-east-1.amazonaws.com/soloist" }
}

mock_resource "aws_ce_anomaly_monitor" {
  defaults = { arn = "arn:aws:ce::123456789012:anomalymonitor/mocked" }
}

mock_resource "aws_cloudwatch_metric_alarm" {
  defaults = { arn = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:mocked" }
}
