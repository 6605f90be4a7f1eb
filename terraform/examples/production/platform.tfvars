# What is around it: nothing that holds a model is destroyed by mistake, and nothing is stopped at night.
environment = "production"
owner       = "platform-team"
model       = "llama-3.1-8b"

monthly_budget_usd = 2700 # cluster, one g5.xlarge on demand and up to four on spot: see `soloist cost`
alert_emails       = ["platform@example.com", "finance@example.com"]
anomaly_usd        = 50

idle_gpu_minutes = 180 # nights are quiet, and the pod on demand stays
