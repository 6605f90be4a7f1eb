"""The figures of one finished turn, as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """What one turn cost, seen from the client.

    Attributes:
        prompt_tokens, cached_tokens, completion_tokens: counts; cached ones are part of the prompt.
        first_token_s: from asking to the first text, seconds; None where none came.
        total_s: from asking to the end, seconds.
        decode_s: from the first token to the last, as the server saw them, seconds.
        replays: decode steps that were replays of a captured graph.
        eager: reason -> decode steps that were not.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_s: float | None
    total_s: float
    decode_s: float
    replays: int
    eager: Mapping[str, int]

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second between the first and the last; None where there are not two."""
        return (
            (self.completion_tokens - 1) / self.decode_s if self.completion_tokens > 1 and self.decode_s > 0 else None
        )

    def line(self) -> str:
        """Everything in one line."""
        parts = [
            f"{self.completion_tokens} tokens",
            "no first token" if self.first_token_s is None else f"first token {self.first_token_s:.3f} s",
        ]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        parts.append(f"{self.total_s:.2f} s in all")
        parts.append(f"prompt {self.prompt_tokens} tokens, {self.cached_tokens} cached")
        parts.append(f"replays {self.replays}")
        parts.append(f"eager steps {eager_text(self.eager)}")
        return " | ".join(parts)


def eager_text(eager: Mapping[str, int]) -> str:
    """`0`, or the sum and its parts: `12 (no_cuda 12)`."""
    total = sum(eager.values())
    if not total:
        return "0"
    parts = ", ".join(f"{reason} {count}" for reason, count in sorted(eager.items()) if count)
    return f"{total} ({parts})"
