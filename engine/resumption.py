"""What a resumption may ask: it comes from a client, who may have it wrong or mean harm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import InvalidRequestError
from engine.history import Made, Resumption, Segment, covered, placed
from engine.params import SamplingParams

_REPEATED_CONTEXTS = 16  # whole contexts of chunk rows that a resumption may have computed again


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes of an engine: tokens of a context, rows of a prefill chunk, ids of the vocabulary."""

    context: int
    chunk: int
    vocabulary: int


def check_resumption(
    resumption: Resumption, prompt_tokens: int, params: SamplingParams, end_ids: Iterable[int], bounds: Bounds
) -> None:
    """Raise InvalidRequestError, with the request's field, for what no answer to such a prompt can have left behind."""
    emitted = resumption.emitted
    room = bounds.context - prompt_tokens + 1
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    if len(emitted) > limit:
        raise InvalidRequestError(
            "resume.token_ids", f"are {len(emitted)}, and an answer to this has at most {limit} tokens"
        )
    ends = {*end_ids, *params.stop_token_ids}
    for index, token_id in enumerate(emitted):
        if not 0 <= token_id < bounds.vocabulary:
            raise InvalidRequestError(
                f"resume.token_ids[{index}]", f"must be below the vocabulary's {bounds.vocabulary} ids; got {token_id}"
            )
        if token_id in ends:
            raise InvalidRequestError(f"resume.token_ids[{index}]", "is an end token: no answer goes on after it")
    read_all = covered(resumption.history) < prompt_tokens and 0 <= resumption.read <= len(emitted)
    if not read_all or not _can_be_made(resumption.history, bounds):
        raise InvalidRequestError("resume.resume_token", "tells of a past that this prompt cannot have here")


def _can_be_made(history: Sequence[Segment], bounds: Bounds) -> bool:
    rows = 0
    for start, segment in placed(history):
        most = bounds.chunk if segment.made is Made.PREFILL else 1
        if segment.tokens < 1 or not 1 <= segment.rows <= most or start + segment.rows > bounds.context:
            return False
        if segment.made is Made.PREFILL:
            rows += segment.rows
            if segment.tokens > segment.rows:
                return False
    return rows <= _REPEATED_CONTEXTS * bounds.context
