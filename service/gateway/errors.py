"""What a caller is told when there is no answer: one type, and the one table from the client's errors to HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc

from service import client

INVALID: Final = "invalid_request_error"
FAILED: Final = "server_error"
RESUME_HEADER: Final = "Last-Event-ID"
_SOON_S: Final = 2.0  # when a server that said nothing of it may be there again
_LONGEST_MESSAGE, _LONGEST_PARAM = 600, 120  # characters: they may quote what was sent
_NO_SERVER = "no server of the model can be reached; ask again"


class ApiError(Exception):
    """No answer, and why, as the OpenAI API says it.

    Attributes:
        status: of HTTP.
        kind: the error's `type`. code: a stable word for programs. param: the field that is wrong.
        retry_after_s: when asking again makes sense, seconds.
        request_id: under which the server's log has it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _clipped(message, _LONGEST_MESSAGE)
        self.kind = kind
        self.code = code
        self.param = None if param is None else _clipped(param, _LONGEST_PARAM)
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    def body(self) -> dict[str, Any]:
        """`{"error": {...}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """The same as JSON."""
        return json.dumps(self.body()).encode()

    def headers(self) -> dict[str, str]:
        """Beside the content's type."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status == 409 and self.code != "session_busy":
            headers["x-should-retry"] = "false"  # OpenAI's clients repeat every 409 that does not say so
        if self.request_id:
            headers["x-request-id"] = self.request_id
        return headers


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A field that is not what it must be: 400, with its name."""
    return ApiError(400, f"{param}: {message}", code=code, param=param)


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


@dataclass(frozen=True, slots=True)
class Row:
    """What one type of the client library's errors becomes. `codes` renames reasons of the server's."""

    error: type[client.ChatError]
    status: int
    kind: str
    code: str
    codes: Mapping[str, str]
    meaning: str


# First match wins.
TABLE: Final[tuple[Row, ...]] = (
    Row(
        client.BadRequestError, 400, INVALID, "invalid_value",
        {"CONTEXT_LENGTH": "context_length_exceeded", "INVALID_FIELD": "invalid_value"},
        "a field is wrong; `param` names it",
    ),
    Row(
        client.UnauthenticatedError, 401, "authentication_error", "invalid_api_key",
        {"UNAUTHENTICATED": "invalid_api_key"},
        "the servers want a key, and this is none of theirs",
    ),
    Row(
        client.ResumeRefusedError, 409, INVALID, "resume_refused", {},
        "the answer cannot go on with the same words here",
    ),
    Row(client.OverloadedError, 429, "rate_limit_error", "queue_full", {}, "no room now, or the key has all its turns"),
    Row(client.UnavailableError, 503, FAILED, "unavailable", {}, "no server can be reached, or it loads, or it leaves"),
    Row(client.ClosedError, 503, FAILED, "draining", {"CLIENT_CLOSED": "draining"}, "this gateway is leaving"),
    Row(
        client.DeadlineError, 504, FAILED, "deadline_exceeded", {"DEADLINE": "deadline_exceeded"},
        "`--deadline-s` is over",
    ),
    Row(
        client.BrokenStreamError, 502, FAILED, "broken_stream", {},
        "something between here and the server cut the answer",
    ),
    Row(
        client.ServerError, 500, FAILED, "internal_error", {"INTERNAL": "internal_error"},
        "the server failed: see its log",
    ),
)  # fmt: skip
# Statuses of gRPC that are rarer than a type of their own.
_STATUSES: Final[Mapping[grpc.StatusCode, tuple[int, str, str]]] = {
    grpc.StatusCode.ABORTED: (409, INVALID, "aborted"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error", "permission_denied"),
    grpc.StatusCode.NOT_FOUND: (404, INVALID, "not_found"),
    grpc.StatusCode.UNIMPLEMENTED: (501, FAILED, "not_implemented"),
}
# What fields of the proto are called here.
_PARAMS: Final[Mapping[str, str]] = {
    "resume": RESUME_HEADER,
    "resume.resume_token": RESUME_HEADER,
    "resume.token_ids": RESUME_HEADER,
    "api_key": "Authorization",
    "response_format.json_schema": "response_format.json_schema.schema",
    "response_format.choice.choices": "response_format.choice",
    "metadata": "headers",
}


def api_error_of(error: client.ChatError, renamed: Mapping[str, str] | None = None) -> ApiError:
    """What the caller is told. `renamed` has the names under which this caller knows fields of the proto."""
    row = next((row for row in TABLE if isinstance(error, row.error)), TABLE[-1])
    status, kind, code = row.status, row.kind, row.codes.get(error.reason, error.reason.lower() or row.code)
    message, param, retry_after_s = str(error), None, error.retry_after_s
    if isinstance(error, client.ServerError) and error.code in _STATUSES:
        status, kind, fallback = _STATUSES[error.code]
        code = error.reason.lower() or fallback
    if isinstance(error, client.BadRequestError):
        param = {**_PARAMS, **(renamed or {})}.get(error.field, error.field) or None
        if param is not None and message.startswith(f"{error.field}: "):
            message = param + message[len(error.field) :]
    if isinstance(error, client.OverloadedError) and not error.reason:  # gRPC's own, of messages beyond its caps
        return ApiError(413, "the request is larger than the server takes", code="request_too_large")
    if status == 503:
        retry_after_s = retry_after_s or _SOON_S
        if not error.reason:  # gRPC's text has addresses of the inside
            message = _NO_SERVER
    return ApiError(
        status,
        message,
        kind=kind,
        code=code,
        param=param,
        retry_after_s=retry_after_s,
        request_id=error.request_id,
    )
