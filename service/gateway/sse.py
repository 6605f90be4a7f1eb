"""Server-sent events, as bytes."""

from __future__ import annotations

import json
from typing import Any, Final

from service.gateway.errors import ApiError

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # nginx would keep tokens back
}
DONE: Final = b"data: [DONE]\n\n"


def event(data: dict[str, Any], event_id: str | None = None) -> bytes:
    """One event of JSON."""
    line = f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
    return (line if event_id is None else f"id: {event_id}\n{line}").encode()


def failure(problem: ApiError) -> bytes:
    """The event that ends an answer which broke."""
    return b"event: error\ndata: " + problem.encoded() + b"\n\n"


def comment(text: str) -> bytes:
    """Something that keeps a silent connection alive.

    No blank line ends it: once OpenAI's client has seen an id, it takes each for the end of an event.
    """
    return f": {text}\n".encode()
