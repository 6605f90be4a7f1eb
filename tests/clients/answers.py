"""What every client must see, whatever its language: one whole answer, as JSON events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

QUESTION = "What is the capital of France?"


def check_answer(events: Sequence[dict[str, Any]]) -> None:
    """One started, deltas that grow by whole pieces, one finished; the text names Paris.

    `events` are `ChatEvent`s in JSON: each has one of the keys `started`, `delta`, `finished`.
    """
    kinds = [next(kind for kind in ("started", "delta", "finished") if kind in event) for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"delta"}
    assert len(kinds) > 3, "an answer comes piece by piece"
    assert "Paris" in "".join(event["delta"].get("text", "") for event in events[1:-1])
    finished = events[-1]["finished"]
    assert finished["reason"] == "FINISH_REASON_STOP"
    usage = finished["usage"]
    generated_key = "completion_tokens" if "completion_tokens" in usage else "completionTokens"
    assert int(usage[generated_key]) > 0
