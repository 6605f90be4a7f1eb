# A cluster for development: the cheapest that works.
environment = "dev"
owner       = "platform-team"
model       = "llama-3.1-8b"

nat = "single" # its zone's end is everybody's; a dev cluster may have that
# Name your office or VPN: public_access_cidrs = ["203.0.113.7/32"]

control_plane_logs = ["authenticator"]
log_retention_days = 7
