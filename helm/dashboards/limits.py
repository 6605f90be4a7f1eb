"""From which value on a figure is orange or red: the alerts' own, so that no rule fires over a green board."""

from __future__ import annotations

FIRST_TOKEN = ((1.0, "orange"), (2.5, "red"))  # seconds
BETWEEN_TOKENS = ((0.1, "orange"), (0.2, "red"))  # seconds
FEW = ((0.01, "orange"), (0.05, "red"))  # a share that should be 0
REPLAYED = ((0.0, "red"), (0.99, "orange"), (1.0, "green"))  # a share that should be 1
ANY = ((0.5, "red"),)  # a count that should be 0; growth is extrapolated, so 1 may come out a little less
ANY_MILD = ((0.5, "orange"),)
