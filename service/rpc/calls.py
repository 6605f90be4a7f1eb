"""What every call has in common, whatever its method: an id, a line in the log, and exactly one end.

Errors raised by handlers become statuses here and nowhere else. Messages' contents never reach the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from service.errors import UnauthenticatedError
from service.rpc.access import ANYBODY, Access, Caller
from service.rpc.status import (
    INTERNAL,
    ClientStalledError,
    MalformedRequestError,
    TurnInterruptedError,
    UnknownMethodError,
    abort,
    row_of,
    safe_text,
)

logger = logging.getLogger("soloist.calls")

QUIET_PREFIXES = ("/grpc.health.", "/grpc.reflection.")  # probes come every few seconds: logged at debug
# W3C trace context: version, trace, span, flags. Version ff and ids of zeros alone are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CLIENT_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)

Trailers = tuple[tuple[str, bytes], ...]
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Call:
    """One call at the edge.

    Attributes:
        request_id: made here and unique; sent to the client as initial metadata `x-request-id`.
        method: full name, or `unknown`.
        labels: what the client said of itself, for the log: its own request id and trace id.
        trace: its `traceparent`, where that is a valid one.
        identify: who asks, as the keys are now. UnauthenticatedError when that is nobody, any more.
        caller: who asked when the call began; decided before anything of it is read.
        error: the error that became the status, if one did.
        stalled: its client has left its stream full for too long.
    """

    request_id: str
    method: str
    labels: dict[str, str] = field(default_factory=dict)
    trace: str = ""
    identify: Callable[[], Caller] = lambda: ANYBODY
    caller: Caller = ANYBODY
    error: BaseException | None = None
    stalled: bool = False


_current: ContextVar[Call] = ContextVar("call")


def current_call() -> Call:
    """The call that this task serves; one made up on the spot outside of any."""
    return _current.get(Call(new_request_id(), "none"))


def new_request_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler: who asks, id, log line, malformed requests, one end.

    It also knows which handlers still run: grpcio's `server.stop` returns before they have ended. `write_stall_s` is
    how long a client may leave its stream's window full; `access` knows who may call;
    `trailers` are sent with the end of each call, but of those that probe and describe.
    """

    def __init__(
        self, write_stall_s: float, access: Access | None = None, trailers: Callable[[], Trailers] = lambda: ()
    ) -> None:
        self._write_stall_s = write_stall_s
        self._access = access or Access()
        self._trailers = trailers
        self._running: dict[asyncio.Task[Any], Call] = {}

    async def wait_ended(self, timeout_s: float, *, but_watchers: bool = False) -> bool:
        """Wait until every handler's clean-up is over; False if some still run after `timeout_s`.

        `but_watchers` leaves out streams that never end by themselves, such as health's Watch.
        """
        tasks = [
            task
            for task, call in self._running.items()
            if not (but_watchers and call.method.startswith(QUIET_PREFIXES))
        ]
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        return not pending

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._unknown(_method_name(handler_call_details), metadata))
        return self._wrapped(handler, _method_name(handler_call_details), metadata)

    def _unknown(self, method: str, metadata: Any) -> Callable[[Any, Context], Awaitable[None]]:
        async def refuse(_requests: Any, context: Context) -> None:
            async with self._one_call(_begun("unknown", metadata), context):
                raise UnknownMethodError(f"no method {safe_text(method)[:200]}; reflection lists what is served")

        return refuse

    def _wrapped(
        self, handler: grpc.RpcMethodHandler[Any, Any], method: str, metadata: Any
    ) -> grpc.RpcMethodHandler[Any, Any]:
        inner, one_request = _behaviour(handler)

        async def unary(requests: AsyncIterator[Any], context: Context) -> Any:
            async with self._one_call(_begun(method, metadata), context):
                return await inner(await _only(context) if one_request else _well_formed(requests), context)

        async def streaming(requests: AsyncIterator[Any], context: Context) -> None:
            async with self._one_call(_begun(method, metadata), context):
                request = await _only(context) if one_request else _well_formed(requests)
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        await self._write(context, response)

        make, behaviour = (
            (grpc.stream_stream_rpc_method_handler, streaming)
            if handler.response_streaming
            else (grpc.stream_unary_rpc_method_handler, unary)
        )
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            behaviour,
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return wrapped

    async def _write(self, context: Context, response: Any) -> None:
        """Hand one message to HTTP/2. Blocks while the stream's window and buffers are full, and not for ever."""
        try:
            async with asyncio.timeout(self._write_stall_s):
                await context.write(response)
        except TimeoutError:
            current_call().stalled = True  # for those who will be closed, and not told why
            raise ClientStalledError(
                f"nothing was read for {self._write_stall_s:g} s; read the stream as it comes"
            ) from None

    @asynccontextmanager
    async def _one_call(self, call: Call, context: Context) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None  # grpc.aio serves each call in a task
        self._running[task] = call
        token = _current.set(call)
        started_s = time.monotonic()
        outcome = "CANCELLED"
        try:
            try:
                await context.send_initial_metadata((("x-request-id", call.request_id),))
                call.identify = partial(
                    self._access.caller, call.method, context.invocation_metadata(), context.auth_context()
                )
                call.caller = call.identify()
                yield
                context.set_trailing_metadata(self._trailers_of(call))
            except grpc.aio.AbortError:
                raise
            except asyncio.CancelledError:
                # Cancelled from outside: the client left or the server was stopped, and gRPC has the status. Cancelled
                # from inside: nobody would ever tell the client (context.cancelled() does not say which it was).
                if task.cancelling():
                    raise
                call.error = TurnInterruptedError("this server broke the work off; ask again")
                await abort(context, call.error, call.request_id, self._trailers_of(call))
            except Exception as error:
                call.error = error
                if row_of(error) is INTERNAL:
                    _log_internal(call, error)
                await abort(context, error, call.request_id, self._trailers_of(call))
            outcome = "OK"
        except (grpc.aio.AbortError, asyncio.CancelledError) as end:
            if call.error is not None:
                outcome = row_of(call.error).reason
            elif isinstance(end, grpc.aio.AbortError):
                outcome = "ABORTED_BY_HANDLER"
            raise
        finally:
            _log_call(call, outcome, time.monotonic() - started_s)
            _current.reset(token)
            del self._running[task]

    def _trailers_of(self, call: Call) -> Trailers:
        stranger = isinstance(call.error, UnauthenticatedError)  # is told nothing
        return () if stranger or call.method.startswith(QUIET_PREFIXES) else self._trailers()


def _method_name(details: grpc.HandlerCallDetails) -> str:
    method: str | bytes = details.method  # bytes in grpcio's aio server
    return method.decode("utf-8", "backslashreplace") if isinstance(method, bytes) else str(method)


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> tuple[Any, bool]:
    """The handler's function, and whether it takes one request rather than a stream of them."""
    if handler.request_streaming:
        return (handler.stream_stream if handler.response_streaming else handler.stream_unary), False
    return (handler.unary_stream if handler.response_streaming else handler.unary_unary), True


class _Malformed:
    """Stands for bytes that are no message: a deserialiser that raised would end the call with UNKNOWN."""


_MALFORMED = _Malformed()


def _tolerant(deserialise: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialise is None:
        return None

    def parse(data: bytes) -> Any:
        try:
            return deserialise(data)
        except (DecodeError, ValueError, RecursionError):
            return _MALFORMED

    return parse


async def _only(context: Context) -> Any:
    """The one request of a call. grpcio leaves a client for ever that sends none where one is due."""
    request = await context.read()
    if request is grpc.aio.EOF or isinstance(request, _Malformed):
        raise MalformedRequestError
    return request


async def _well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The requests, or an error at the first that is no message."""
    async for request in requests:
        if isinstance(request, _Malformed):
            raise MalformedRequestError
        yield request


def _begun(method: str, metadata: Sequence[tuple[str, str | bytes]] | None) -> Call:
    """A call with what its metadata says of it. What is malformed there is left out."""
    call = Call(new_request_id(), method)
    for key, value in metadata or ():
        if not isinstance(value, str):
            continue
        if key == "traceparent" and (match := _TRACEPARENT.fullmatch(value)):
            call.trace, call.labels["trace_id"] = value, match[1]
        if key == "x-request-id" and _CLIENT_ID.fullmatch(value):
            call.labels["client_request_id"] = value
    return call


def _log_call(call: Call, outcome: str, seconds: float) -> None:
    level = logging.DEBUG if call.method.startswith(QUIET_PREFIXES) else logging.INFO
    fields = {"request_id": call.request_id, "method": call.method, "outcome": outcome, "seconds": round(seconds, 4)}
    if call.caller.name:
        fields["caller"] = call.caller.name
    logger.log(level, "call", extra={"fields": fields | call.labels})


def _log_internal(call: Call, error: Exception) -> None:
    # The error's own text may quote a message, so only its type and its place are kept.
    place = "".join(traceback.format_tb(error.__traceback__))
    fields = {"request_id": call.request_id, "method": call.method, "error": type(error).__name__, "traceback": place}
    logger.error("a handler failed", extra={"fields": fields})
