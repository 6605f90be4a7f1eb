"""Whatever a body holds, it is a request or an error that names a place: never an exception of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.client.chat import _request
from service.client.errors import BadRequestError
from service.gateway.asked import CHAT_FIELDS, COMPLETION_FIELDS, Asked, asked_chat, asked_completion
from service.gateway.errors import ApiError
from service.gateway.fields import read_json
from service.gateway.messages import MESSAGE_FIELDS
from service.gateway.resume_state import Standing, read_standing

NAMES = sorted({entry.name for entry in (*CHAT_FIELDS, *COMPLETION_FIELDS, *MESSAGE_FIELDS)})
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.sampled_from(["text", "json_schema", "json_object", "user", "assistant", "none"])
)  # fmt: skip
KEYS = st.sampled_from([*NAMES, "type", "text", "schema", "include_usage", "1"]) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
MESSAGES = st.just([{"role": "user", "content": "Hi"}]) | VALUES


def outcome(act: Callable[[], object]) -> tuple[int, str | None] | None:
    """The status and place of a refusal; None for none."""
    try:
        act()
    except ApiError as error:
        return error.status, error.param
    except BadRequestError as error:
        return 400, error.field
    return None


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), VALUES, max_size=5), messages=MESSAGES)
def test_any_object_is_a_request_or_an_error_with_its_place(body: dict[str, Any], messages: Any) -> None:
    for read, first in ((asked_chat, "messages"), (asked_completion, "prompt")):

        def act(read: Callable[..., Asked] = read, first: str = first) -> None:
            asked = read(read_json(json.dumps({first: messages, **body}).encode()))
            _request(asked.messages, asked.sampling)

        refused = outcome(act)
        assert refused is None or (refused[0] == 400 and refused[1] is not None)


@settings(max_examples=200, deadline=None)
@given(
    given_id=st.text(max_size=40) | st.binary(max_size=60).map(lambda raw: Standing(raw, 1, 2, b"8 bytes.").encoded())
)
def test_any_event_id_is_one_of_ours_or_refused(given_id: str) -> None:
    refused = outcome(lambda: read_standing(given_id))
    assert refused == (400, "Last-Event-ID") or read_standing(given_id).encoded() == given_id.rstrip("=")


def test_what_is_quoted_has_a_bound() -> None:
    name = "x" * 1_000_000
    for body in (
        {name: 1},
        {"messages": [{"role": name}]},
        {"messages": [{name: 1}]},
        {"response_format": {"type": name}},
    ):
        with pytest.raises(ApiError) as caught:
            asked_chat(body)
        assert len(caught.value.encoded()) < 2_000
