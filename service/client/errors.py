"""What can go wrong with a call, as types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2

_Detail = TypeVar("_Detail", bound=ProtoMessage)


class ChatError(Exception):
    """A call failed.

    Attributes:
        code: gRPC's status code.
        reason: the server's stable word for it, e.g. QUEUE_FULL; empty if it gave none.
        request_id: under which the server's log has the call; empty if it never got there.
        retry_after_s: when the server said that asking again makes sense, seconds.
    """

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode,
        reason: str = "",
        request_id: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class BadRequestError(ChatError):
    """The request is wrong; `field` names where. Asking again will not help."""

    field: str = ""


class OverloadedError(ChatError):
    """The server has no room now."""


class UnavailableError(ChatError):
    """The server cannot be reached, is loading, or is going away."""


class DeadlineError(ChatError):
    """The deadline came first."""


class UnauthenticatedError(ChatError):
    """The server does not accept who asks."""


class ServerError(ChatError):
    """Anything else that the server could not do."""


class ResumeRefusedError(ChatError):
    """The answer that was broken off cannot go on with the same words on this server: its numerics are others."""


class BrokenStreamError(ChatError):
    """The stream ended well but without `finished`, or left tokens out: something on the way cut it."""

    def __init__(self, message: str = "the answer's stream ended without its last event", reason: str = "") -> None:
        super().__init__(message, grpc.StatusCode.UNKNOWN, reason)


class ClosedError(ChatError):
    """The client was closed while its caller waited, or before it asked."""

    def __init__(self) -> None:
        super().__init__("this client was closed; open another", grpc.StatusCode.CANCELLED, "CLIENT_CLOSED")


_TYPES: dict[grpc.StatusCode, type[ChatError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    # A call that nobody here cancelled: the server did, which is how a stopping one ends what comes last.
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.FAILED_PRECONDITION: ResumeRefusedError,
}


def bad_request(field: str, description: str) -> BadRequestError:
    """A mistake that is seen here, before anything is sent."""
    error = BadRequestError(f"{field}: {description}", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    error.field = field
    return error


def from_rpc(failed: grpc.aio.AioRpcError) -> ChatError:
    """The typed form of gRPC's error, with the google.rpc details that the server sent."""
    reason, request_id, field = "", "", ""
    retry_after_s: float | None = None
    for detail in _details(failed):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            reason = _unpacked(detail, error_details_pb2.ErrorInfo()).reason
        elif detail.Is(error_details_pb2.RequestInfo.DESCRIPTOR):
            request_id = _unpacked(detail, error_details_pb2.RequestInfo()).request_id
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = _unpacked(detail, error_details_pb2.RetryInfo()).retry_delay
            retry_after_s = delay.seconds + delay.nanos / 1e9
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            violations = _unpacked(detail, error_details_pb2.BadRequest()).field_violations
            field = violations[0].field if violations else ""
    code = failed.code()
    kind = _TYPES.get(code, ServerError)
    error = kind(failed.details() or code.name, code, reason, request_id, retry_after_s)
    if isinstance(error, BadRequestError):
        error.field = field
    return error


@contextmanager
def told_as_ours() -> Iterator[None]:
    """gRPC's errors in their typed form. CancelledError only where somebody cancelled this task.

    gRPC cancels the calls of a channel that is closed, and so raises CancelledError where nobody asked for an end: a
    reader would leave in silence, or take its whole task group with it.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ClosedError from None
    except grpc.aio.UsageError as error:  # what a closed channel says to a new call
        raise ClosedError from error


def _details(failed: grpc.aio.AioRpcError) -> list[any_pb2.Any]:
    for key, value in failed.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []


def _unpacked(packed: any_pb2.Any, into: _Detail) -> _Detail:
    packed.Unpack(into)
    return into
