# Each input that would fail late, or quietly do something else, is refused at once with a sentence. Many in one run, since a
# run costs seconds: each of them must fail, or the run does.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner              = "platform-team"
  monthly_budget_usd = 500
  alert_emails       = ["platform@example.com"]
}

run "wrong" {
  command = plan

  variables {
    region              = "Frankfurt"
    cluster_name        = "no_underscores"
    environment         = "Dev!"
    owner               = ""
    model               = "models/llama"
    tags                = { environment = "dev" }
    model_cache_days    = 0
    image_repository    = "Soloist"
    images_kept         = 1
    namespace           = "Chat"
    service_account     = "-"
    monthly_budget_usd  = 0
    budget_covers       = "everything"
    alert_emails        = []
    anomaly_covers      = "everything"
    anomaly_monitor_arn = "Default-Services-Monitor"
    anomaly_usd         = 0
    idle_gpu_minutes    = 45
    gpu_metrics_days    = 2
    gpu_pools           = []
    night_stop          = { timezone = "Berlin time", schedule = "19:30" }
  }

  expect_failures = [
    var.region, var.cluster_name, var.environment, var.owner, var.model, var.tags, var.model_cache_days, var.image_repository,
    var.images_kept, var.namespace, var.service_account, var.monthly_budget_usd, var.budget_covers, var.alert_emails,
    var.anomaly_covers, var.anomaly_monitor_arn, var.anomaly_usd, var.gpu_metrics_days, var.gpu_pools, var.idle_gpu_minutes, var.night_stop,
  ]
}

run "wrong_in_other_ways" {
  command = plan

  variables {
    model_cache_days = 2.5
    images_kept      = 2.5
    alert_emails     = ["platform"]
    gpu_pools        = ["GPU"]
    night_stop       = { schedule = "30 19 * * *" } # five fields, as in a crontab
  }

  expect_failures = [var.model_cache_days, var.images_kept, var.alert_emails, var.gpu_pools, var.night_stop]
}

# A name that EKS takes and S3 does not.
run "upper_case" {
  command = plan

  variables {
    cluster_name = "Chat"
  }

  expect_failures = [aws_s3_bucket.models]
}
