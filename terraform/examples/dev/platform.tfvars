# What is around it: a small budget, models and images that may go with the rest, and a second guard at night.
environment = "dev"
owner       = "platform-team"
model       = "llama-3.1-8b"

monthly_budget_usd = 400 # cluster and one spot node in working hours, with some room: see `soloist cost`
alert_emails       = ["platform@example.com"]
anomaly_usd        = 20

destroy_data     = true
model_cache_days = 7
images_kept      = 5

idle_gpu_minutes = 60
gpu_pools        = ["gpu-spot", "gpu-spot-more"]
night_stop = {
  enabled  = true
  timezone = "Europe/Berlin"
  schedule = "30 19 ? * MON-FRI *" # half an hour after workHours.end in soloist-values.yaml
}
