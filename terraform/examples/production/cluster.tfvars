# A cluster for readers who notice: no zone that all depend on, and every call to the API on record.
environment = "production"
owner       = "platform-team"
model       = "llama-3.1-8b"

nat = "per-zone"
# Private endpoints cost more than the traffic that they spare (docs/cost.md), until many nodes come and go:
# interface_endpoints = true
# Name your office or VPN: public_access_cidrs = ["203.0.113.7/32"]

ebs_csi_driver = true # for Prometheus' data
system_nodes   = 3    # one in each zone: a disk is in one zone, and its pod must be too

log_retention_days = 90
