"""How often, and after how long, a client asks again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long to ask again when a server is full or away. Waits double, each between half and whole.

    Attributes:
        attempts: in all, one after the other without a new token; 1 never asks again.
        first_wait_s, longest_wait_s: bounds of the wait. A server's own RetryInfo is honoured where it is longer.
        resumes: how often one answer may be resumed in all.
        patience_s: where every server is full and asks for a longer wait than this, its error is told at once.
    """

    attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0
    resumes: int = 16
    patience_s: float = math.inf

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Before attempt number `attempt` (the second is 1)."""
        whole_s = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1))
        return max(whole_s * random.uniform(0.5, 1.0), asked_s or 0.0)
