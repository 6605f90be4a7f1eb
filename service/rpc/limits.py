"""Every size that a request controls, in one table: the limit passes, limit + 1 is refused.

The README's table of caps, GetServerInfo's limits and the checks in service.rpc.convert all come from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.params import (
    MAX_CHOICE_BYTES,
    MAX_CHOICES,
    MAX_JSON_SCHEMA_BYTES,
    MAX_LOGIT_BIAS,
    MAX_REGEX_BYTES,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
)
from service.resume import MAX_TOKEN_BYTES
from soloist.v1 import chat_pb2

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_MESSAGES = 1024
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_NAME_CHARS = 64
MAX_SESSION_ID_CHARS = 128
MAX_PRIORITY = 100
MAX_RESUMED_IDS = 256 * 1024
MAX_METADATA_BYTES = 16 * 1024

# What the transport itself lets through: a little more than MAX_REQUEST_BYTES, so that the refusal of a request just
# above the cap can name the cap and what would be right. Far larger ones are cut off by gRPC with RESOURCE_EXHAUSTED.
TRANSPORT_REQUEST_BYTES = MAX_REQUEST_BYTES + 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cap:
    """One row: the request's field, the largest value that passes, its unit."""

    field: str
    limit: int
    unit: str


CAPS: tuple[Cap, ...] = (
    Cap("request", MAX_REQUEST_BYTES, "bytes, serialised"),
    Cap("metadata", MAX_METADATA_BYTES, "bytes, all headers of one call"),
    Cap("messages", MAX_MESSAGES, "messages"),
    Cap("messages[].content", MAX_MESSAGE_BYTES, "bytes of UTF-8"),
    Cap("messages[].name", MAX_NAME_CHARS, "characters"),
    Cap("session_id", MAX_SESSION_ID_CHARS, "characters"),
    Cap("stop", MAX_STOP_STRINGS, "texts"),
    Cap("stop[]", MAX_STOP_STRING_CHARS, "characters"),
    Cap("stop_token_ids", MAX_STOP_TOKEN_IDS, "ids"),
    Cap("logit_bias", MAX_LOGIT_BIAS, "entries"),
    Cap("top_logprobs", MAX_TOP_LOGPROBS, "alternatives"),
    Cap("response_format.json_schema", MAX_JSON_SCHEMA_BYTES, "bytes of UTF-8"),
    Cap("response_format.regex", MAX_REGEX_BYTES, "bytes of UTF-8"),
    Cap("response_format.choice.choices", MAX_CHOICES, "texts"),
    Cap("response_format.choice.choices[]", MAX_CHOICE_BYTES, "bytes of UTF-8"),
    Cap("resume.resume_token", MAX_TOKEN_BYTES, "bytes"),
    Cap("resume.token_ids", MAX_RESUMED_IDS, "ids, or an answer's longest"),
    Cap("priority", MAX_PRIORITY, "either side of 0"),
)


def proto_limits(context_tokens: int, queue_depth: int, max_active_turns: int) -> chat_pb2.Limits:
    """The caps as GetServerInfo tells them."""
    return chat_pb2.Limits(
        context_tokens=context_tokens,
        max_messages=MAX_MESSAGES,
        max_message_bytes=MAX_MESSAGE_BYTES,
        max_stop_strings=MAX_STOP_STRINGS,
        max_stop_string_chars=MAX_STOP_STRING_CHARS,
        max_stop_token_ids=MAX_STOP_TOKEN_IDS,
        max_logit_bias=MAX_LOGIT_BIAS,
        max_top_logprobs=MAX_TOP_LOGPROBS,
        max_session_id_chars=MAX_SESSION_ID_CHARS,
        queue_depth=queue_depth,
        max_active_turns=max_active_turns,
    )
