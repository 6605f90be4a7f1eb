"""Grafana dashboards as code: what readers feel, and what the GPU does. `python -m helm.dashboards` writes them."""
