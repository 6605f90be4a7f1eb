"""Upper bounds of the histograms' buckets."""

from __future__ import annotations

# 0.2 ms to 10 min, seconds. The OpenTelemetry GenAI bounds are all among them; the ones below 10 ms and above its last
# bound are ours: a token may take 0.3 ms on a GPU, and a whole answer minutes on a CPU.
TOKEN_BUCKETS = (
    0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008, 0.01, 0.0125, 0.015,
    0.02, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0,
)  # fmt: skip
FIRST_TOKEN_BUCKETS = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0, 600.0,
)  # fmt: skip
ANSWER_BUCKETS = (
    0.0002, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 15.0, 20.48, 30.0,
    40.96, 60.0, 81.92, 120.0, 180.0, 300.0, 450.0, 600.0,
)  # fmt: skip
