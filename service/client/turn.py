"""One turn as its reader sees it: one answer, whichever servers it takes.

A break before the first token is asked anew. A later one is resumed from the ids that came: exactly, so that the words
are those of the unbroken answer, and in FAST mode only where no server can and the reader allows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, cast

import grpc

from service.client.answers import BrokenAnswer, Delta, Event, Finished, Resumed, Started, from_proto
from service.client.errors import (
    BrokenStreamError,
    ChatError,
    OverloadedError,
    ResumeRefusedError,
    UnavailableError,
    told_as_ours,
)
from service.client.retries import Retries
from service.client.servers import Route, Server, Servers
from soloist.v1 import chat_pb2

ResumeWish = Literal["off", "exact", "fast"]

_ENDS_BY_SERVER = frozenset({"draining", "cancelled"})
_MODES = {"exact": chat_pb2.RESUME_MODE_EXACT, "fast": chat_pb2.RESUME_MODE_FAST}
# What proxies, operating systems and HTTP/2 make of a connection that breaks; our servers give a reason with theirs.
_OF_TRANSPORT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)


class Turn:
    """One turn's request, and what its reader has of the answer."""

    def __init__(
        self,
        request: chat_pb2.ChatRequest,
        servers: Servers | Route,
        metadata: tuple[tuple[str, str], ...],
        retries: Retries,
        wish: ResumeWish,
        ends_s: float | None,
        broken: BrokenAnswer | None = None,
    ) -> None:
        self._request = request
        self._servers = servers
        self._metadata = metadata
        self._retries = retries
        self._wish = wish
        self._ends_s = ends_s
        self._ids: list[int] = []
        self._token = b""
        self._mode: Literal["exact", "fast"] = "exact"
        self._refused: set[str] = set()  # addresses that cannot go on exactly
        self._away: set[str] = set()  # addresses that failed since the last token
        self._failures = 0  # since the last token
        self._resumes = 0
        self._told = False  # that the answer has begun
        self._broken: tuple[float, str] | None = None  # when and why
        if broken is not None:
            self._token = broken.resume_token
            self._ids.extend(broken.token_ids)
            _ask_for_rest(request, self._token, self._ids, self._mode)

    async def events(self) -> AsyncGenerator[Event, None]:
        """See ChatClient.stream."""
        while True:
            server = self._servers.current
            ended: Finished | None = None
            try:
                async with aclosing(self._one_attempt(server)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            ended = event
                        else:
                            yield event
                if ended is None:
                    raise BrokenStreamError
                if not self._goes_on_after(ended):
                    yield ended
                    return
                wait_s = self._wait_s(server, None)
                if wait_s is None:
                    yield ended
                    return
                self._break(ended.reason)
            except ChatError as error:
                if not self._goes_on_after_error(server, error):
                    raise
                wait_s = self._wait_s(server, error)
                if wait_s is None:
                    raise
                self._break(error.reason or error.code.name)
            await asyncio.sleep(wait_s)

    def _goes_on_after(self, ended: Finished) -> bool:
        return ended.reason in _ENDS_BY_SERVER and (self._resumable or not self._ids) and not self._servers.closed

    @property
    def _resumable(self) -> bool:
        return self._wish != "off" and bool(self._ids) and bool(self._token) and self._resumes < self._retries.resumes

    def _goes_on_after_error(self, server: Server, error: ChatError) -> bool:
        if isinstance(error, ResumeRefusedError) and (self._ids or self._request.HasField("resume")):
            self._refused.add(server.target)
            if self._wish == "fast" and len(self._refused | self._away) == len(self._servers):
                self._mode = "fast"
            return self._mode == "fast" or len(self._servers) == 1 or len(self._refused) < len(self._servers)
        passing = isinstance(error, OverloadedError | UnavailableError)
        of_transport = error.code in _OF_TRANSPORT and not error.reason
        return (passing or of_transport) and (self._resumable or not self._ids) and not self._servers.closed

    def _wait_s(self, failed: Server, error: ChatError | None) -> float | None:
        """How long to wait before the next attempt; None where there is none."""
        self._failures += 1
        if self._failures >= self._retries.attempts:
            return None
        if self._mode == "exact" or not isinstance(error, ResumeRefusedError):
            self._away.add(failed.target)
            self._servers.pass_on(failed)
        asked_s = error.retry_after_s if error is not None else None
        wait_s = self._retries.wait_s(self._failures, asked_s)
        if self._failures < len(self._servers):
            wait_s = 0.0  # another server knows nothing of this one's trouble
        elif asked_s is not None and asked_s > self._retries.patience_s:
            return None
        too_late = self._ends_s is not None and time.monotonic() + wait_s >= self._ends_s
        return None if too_late else wait_s

    def _break(self, cause: str) -> None:
        if self._told and self._broken is None:
            self._broken = (time.monotonic(), cause)

    async def _one_attempt(self, server: Server) -> AsyncGenerator[Event, None]:
        """The events of one call, as far as they are new to the reader. What begins it is told with its first delta."""
        with told_as_ours():
            await server.connected(self._ends_s)
            left_s = None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())
            call = server.stub.Chat(self._asked(), timeout=left_s, metadata=self._metadata)
        begun: Started | None = None
        ended = False
        try:
            # Read on after `finished`, up to the status: leaving earlier would count as a cancel on the server.
            while (message := await _next_of(call, ended=ended)) is not None:
                event = from_proto(message)
                if isinstance(event, Started):
                    begun = event
                    self._token = event.resume_token
                elif event is not None:
                    ended = ended or isinstance(event, Finished)
                    if begun is not None and not (isinstance(event, Finished) and self._goes_on_after(event)):
                        yield self._opening(begun, server)
                        begun = None
                    self._note(event)
                    yield event
        finally:
            call.cancel()

    def _asked(self) -> chat_pb2.ChatRequest:
        if not self._ids:
            return self._request
        request = chat_pb2.ChatRequest()
        request.CopyFrom(self._request)
        _ask_for_rest(request, self._token, self._ids, self._mode)
        return request

    def _opening(self, started: Started, server: Server) -> Event:
        """What the reader is told of a call that has something to say."""
        self._told = True
        if self._broken is None:
            return started
        (broken_s, cause), self._broken = self._broken, None
        self._resumes += 1
        self._mode = "exact"
        self._refused.clear()
        return Resumed(
            started.resume_mode, cause, server.target, started.request_id, len(self._ids), time.monotonic() - broken_s
        )

    def _note(self, event: Event) -> None:
        if isinstance(event, Delta):
            if event.index != len(self._ids):
                wrong = f"token {event.index} came where token {len(self._ids)} was due"
                raise BrokenStreamError(wrong, "WRONG_TOKEN")
            if event.token_ids:
                self._failures = 0
                self._away.clear()
                self._ids.extend(event.token_ids)


def _ask_for_rest(request: chat_pb2.ChatRequest, token: bytes, ids: list[int], mode: Literal["exact", "fast"]) -> None:
    request.ClearField("resume")
    request.resume.resume_token = token
    request.resume.token_ids.extend(ids)
    request.resume.mode = _MODES[mode]


async def _next_of(call: Any, *, ended: bool) -> chat_pb2.ChatEvent | None:
    """The call's next message; None at its end. Nothing that comes after `finished` is the reader's matter."""
    try:
        with told_as_ours():
            message = await call.read()
    except ChatError:
        if ended:
            return None
        raise
    return None if message is grpc.aio.EOF else cast("chat_pb2.ChatEvent", message)
