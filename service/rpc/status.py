"""The one table from error types to gRPC statuses, and their google.rpc details.

Texts are made safe for the wire here: valid UTF-8, no control characters, of bounded length.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2

from engine import errors as engine_errors
from service import errors as service_errors

DOMAIN = "soloist.v1"
DETAILS_KEY = "grpc-status-details-bin"
MAX_TEXT_CHARS = 600
INTERNAL_TEXT = "internal error; the server's log has it under this request id"


@dataclass(frozen=True, slots=True)
class Row:
    """One error type's status. `reason` is ErrorInfo's, a stable word for programs."""

    error: type[BaseException]
    code: grpc.StatusCode
    reason: str


class MalformedRequestError(engine_errors.InvalidRequestError):
    """The bytes on the wire are no message of the proto."""

    def __init__(self) -> None:
        super().__init__("request", "must be one valid protobuf message of this method, its strings UTF-8")


class ClientStalledError(service_errors.ServiceError):
    """The client stopped reading: HTTP/2's windows are full and stay full."""


class UnknownMethodError(service_errors.ServiceError):
    """No service of this server has such a method."""


class TurnInterruptedError(service_errors.ServiceError):
    """Work inside the server was cancelled, though neither the client nor the deadline asked for it."""


# First match wins, so derived types stand before their bases. What is in no row is INTERNAL and says nothing.
TABLE: tuple[Row, ...] = (
    Row(engine_errors.ContextLengthError, grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH"),
    Row(engine_errors.TemplateError, grpc.StatusCode.INVALID_ARGUMENT, "CHAT_TEMPLATE"),
    Row(MalformedRequestError, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    Row(engine_errors.InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
    Row(engine_errors.ReplayError, grpc.StatusCode.FAILED_PRECONDITION, "REPLAY_DIFFERS"),
    Row(service_errors.OtherNumericsError, grpc.StatusCode.FAILED_PRECONDITION, "OTHER_NUMERICS"),
    Row(service_errors.QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    Row(service_errors.CallerLimitError, grpc.StatusCode.RESOURCE_EXHAUSTED, "CALLER_LIMIT"),
    Row(service_errors.DeadlineUnmeetableError, grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_UNMEETABLE"),
    Row(service_errors.RetryLaterError, grpc.StatusCode.RESOURCE_EXHAUSTED, "RETRY_LATER"),
    Row(service_errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    Row(service_errors.SessionBusyError, grpc.StatusCode.ABORTED, "SESSION_BUSY"),
    Row(service_errors.NotReadyError, grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
    Row(service_errors.DrainingError, grpc.StatusCode.UNAVAILABLE, "DRAINING"),
    Row(service_errors.EngineLostError, grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST"),
    Row(engine_errors.FatalDeviceError, grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST"),
    Row(service_errors.DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
    Row(service_errors.SlowReaderError, grpc.StatusCode.ABORTED, "SLOW_READER"),
    Row(ClientStalledError, grpc.StatusCode.ABORTED, "SLOW_READER"),
    Row(TurnInterruptedError, grpc.StatusCode.UNAVAILABLE, "INTERRUPTED"),
    Row(UnknownMethodError, grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_METHOD"),
)
INTERNAL = Row(Exception, grpc.StatusCode.INTERNAL, "INTERNAL")
REASONS: tuple[str, ...] = tuple(dict.fromkeys(row.reason for row in (*TABLE, INTERNAL)))


@dataclass(frozen=True, slots=True)
class WireStatus:
    """A status ready to be sent: code, text, and google.rpc.Status bytes for the trailing metadata."""

    code: grpc.StatusCode
    reason: str
    text: str
    details: bytes


def row_of(error: BaseException) -> Row:
    """The table's row for this error."""
    return next((row for row in TABLE if isinstance(error, row.error)), INTERNAL)


def wire_status(error: BaseException, request_id: str) -> WireStatus:
    """What the client is told about `error`."""
    row = row_of(error)
    text = INTERNAL_TEXT if row is INTERNAL or row.code is grpc.StatusCode.INTERNAL else safe_text(str(error))
    details: list[ProtoMessage] = [
        error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if isinstance(error, engine_errors.InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=safe_text(error.field), description=safe_text(error.message)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, service_errors.RetryLaterError):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(max(1, int(error.retry_after_s * 1e9)))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=row.code.value[0], message=text, details=[_packed(detail) for detail in details])
    return WireStatus(row.code, row.reason, text, status.SerializeToString())


async def abort(
    context: grpc.aio.ServicerContext[object, object],
    error: BaseException,
    request_id: str,
    trailers: tuple[tuple[str, bytes], ...] = (),
) -> NoReturn:
    """End the call with `error`'s status, and these trailers beside its details. CancelledError where its client leaves
    before it has taken them.
    """
    status = wire_status(error, request_id)
    try:
        await context.abort(status.code, status.text, ((DETAILS_KEY, status.details), *trailers))
    except grpc.aio.InternalError:
        # A status stands behind what its client has not read. gRPC knows that the client is gone only after the status
        # has failed, and would log that as a fault of ours.
        raise asyncio.CancelledError from None


def safe_text(text: str) -> str:
    """Text that any client can take: lone surrogates and control characters escaped, long text cut with a mark."""
    clipped = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
    encodable = clipped.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in encodable)


def _packed(detail: ProtoMessage) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
