"""The form that an answer must have, as callers of the client write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from service.client.answers import utf8
from service.client.errors import bad_request
from soloist.v1 import chat_pb2


class ResponseFormat(TypedDict, total=False):
    """One of these; none is plain text.

    Attributes:
        json_schema: the answer is a JSON document that fits this JSON schema, as JSON text or as the object.
        regex: the whole answer matches this regular expression.
        choice: the answer is one of these texts.
    """

    json_schema: str | Mapping[str, Any]
    regex: str
    choice: Sequence[str]


def proto_format(form: ResponseFormat) -> chat_pb2.ResponseFormat:
    """Raises BadRequestError, naming the field, for one that cannot be sent; the server checks the rest."""
    given = set(form)
    if not given <= ResponseFormat.__annotations__.keys() or len(given) > 1:
        raise bad_request("response_format", "must be one of json_schema, regex and choice")
    if "json_schema" in form:
        schema = form["json_schema"]
        if not isinstance(schema, str):
            try:
                schema = json.dumps(schema)
            except (TypeError, ValueError) as error:
                raise bad_request("response_format.json_schema", f"cannot be written as JSON: {error}") from None
        utf8("response_format.json_schema", schema)
        return chat_pb2.ResponseFormat(json_schema=schema)
    if "regex" in form:
        utf8("response_format.regex", form["regex"])
        return chat_pb2.ResponseFormat(regex=form["regex"])
    choices = form.get("choice")
    if choices is None:
        return chat_pb2.ResponseFormat(text=chat_pb2.TextFormat())
    if isinstance(choices, str):
        raise bad_request("response_format.choice", "must be a list of texts, not one text")
    for index, choice in enumerate(choices):
        utf8(f"response_format.choice.choices[{index}]", choice)
    return chat_pb2.ResponseFormat(choice=chat_pb2.ChoiceFormat(choices=choices))
