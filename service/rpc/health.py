"""grpc.health.v1 over service.ops.health: for the whole server (""), for each service and for each probe by name.

Written here because the stock servicer holds a lock while it writes to a watcher, so that one watcher who does not
read would keep everybody's health from changing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.ops.health import Health, Question, Readiness

_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
_NOT_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
_UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpcio ships no types for it
    """Check and Watch. `services` are full names that stand for the server's readiness, beside ""."""

    def __init__(self, health: Health, services: Iterable[str]) -> None:
        self._health = health
        self._questions = dict.fromkeys(("", *services), Question.READINESS) | {str(each): each for each in Question}

    async def Check(  # noqa: N802 - named by the proto
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._questions:
            known = ", ".join(sorted(self._questions.keys() - {""}))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"known services: {known}")
        return self._status(request.service)

    async def Watch(  # noqa: N802 - named by the proto
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        changed = asyncio.Event()

        def note(_: Readiness) -> None:
            changed.set()

        unsubscribe = self._health.subscribe(note)
        last = None
        try:
            while True:
                status = self._status(request.service)
                if status is not last:
                    yield status
                last = status
                await changed.wait()
                changed.clear()
        finally:
            unsubscribe()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in self._questions:
            return _UNKNOWN
        return _SERVING if self._health.says_yes_to(self._questions[service]) else _NOT_SERVING
