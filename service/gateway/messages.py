"""The conversation of a chat request: OpenAI's messages to the client library's."""

from __future__ import annotations

from typing import Any, Final

from service.client import Message, Role
from service.gateway import caps
from service.gateway.errors import wrong
from service.gateway.fields import Field, Use, anything, items, nearest, only, read_fields, record, shown, text

_NO_TOOLS = "calls of tools are not served"
ROLES: Final[dict[str, Role]] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_PART_FIELDS: Final = (Field("type", Use.SERVED, text), Field("text", Use.SERVED, text))


def _content(path: str, value: Any) -> str:
    """A string, or text parts, which are put together as they are."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(path, "must be a string or an array of text parts", "invalid_type")
    caps.no_more_than(path, value, caps.PARTS, "parts")
    return "".join(_part(f"{path}[{index}]", part) for index, part in enumerate(value))


def _part(path: str, value: Any) -> str:
    part = record(path, value)
    kind = part.get("type")
    if kind != "text":
        raise wrong(f"{path}.type", f"only `text` parts are served; got {shown(kind)}", "unsupported_parameter")
    values = read_fields(part, _PART_FIELDS, path)
    if "text" not in values:
        raise wrong(f"{path}.text", "is missing", "missing_required_parameter")
    return str(values["text"])


MESSAGE_FIELDS: Final = (
    Field("role", Use.SERVED, text, "`system` or `developer` (the same here), `user`, `assistant`"),
    Field("content", Use.SERVED, _content, "a string, or parts of type `text`, put together as they are"),
    Field("name", Use.SERVED, text, "for chat templates that tell speakers apart"),
    Field("tool_calls", Use.REFUSED, only([], because=_NO_TOOLS)),
    Field("tool_call_id", Use.REFUSED, only(because=_NO_TOOLS)),
    Field("function_call", Use.REFUSED, only(because=_NO_TOOLS)),
    Field("refusal", Use.REFUSED, only(because="a refusal cannot be told from an answer here; send it as `content`")),
    Field("audio", Use.REFUSED, only(because="only text is served")),
    Field(
        "annotations", Use.NO_EFFECT, only([], because="only text is served"), "empty, as OpenAI's clients send it back"
    ),
    Field("parsed", Use.NO_EFFECT, anything, "as OpenAI's clients send it back, beside `content`"),
)


def read_messages(path: str, value: Any) -> tuple[Message, ...]:
    """At least one message, oldest first."""
    given = items(path, value)
    if not given:
        raise wrong(path, "must hold at least one message")
    caps.no_more_than(path, given, caps.MESSAGES, "messages")
    return tuple(_message(f"{path}[{index}]", message) for index, message in enumerate(given))


def _message(path: str, value: Any) -> Message:
    given = record(path, value)
    if given.get("role") in _TOOL_ROLES:
        raise wrong(
            f"{path}.role", f"{_NO_TOOLS}; leave messages of role `{given['role']}` out", "unsupported_parameter"
        )
    values = read_fields(given, MESSAGE_FIELDS, path)
    role = values.get("role")
    if role not in ROLES:
        raise wrong(f"{path}.role", f"must be one of {', '.join(ROLES)}; got {role!r}{nearest(str(role), ROLES)}")
    if "content" not in values:
        raise wrong(f"{path}.content", "is missing: a string or text parts", "missing_required_parameter")
    return Message(ROLES[role], values["content"], values.get("name", ""))
