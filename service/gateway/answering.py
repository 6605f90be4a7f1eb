"""From a request's body to its answer, whole or as a stream of events. The way of every turn through a gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from service.client import (
    BrokenAnswer,
    BrokenStreamError,
    ChatClient,
    ChatError,
    Delta,
    Event,
    Finished,
    Resumed,
    ServerInfo,
    Started,
    TokenLogprobs,
)
from service.gateway import sse
from service.gateway.asked import Asked
from service.gateway.connections import Connections
from service.gateway.errors import FAILED, RESUME_HEADER, ApiError, api_error_of
from service.gateway.leaving import Leaving
from service.gateway.log import Facts, facts_of
from service.gateway.parsing import Parsing
from service.gateway.reading import Bodies, LeftError, caller_key, read_body, session_of, trace_of, while_there
from service.gateway.resume_state import Reading, differs, read_standing
from service.gateway.rotated import OwnKey
from service.gateway.served import ServedModel
from service.gateway.settings import GatewaySettings
from service.gateway.voices import Answering, Voice, figures, finish_reason, usage
from service.gateway.writing import EventStream

_COMMENT_EVERY_S: Final = 1.0


@dataclass(slots=True)
class Backend:
    """The servers, and what all requests have in common."""

    settings: GatewaySettings
    connections: Connections
    model: ServedModel
    leaving: Leaving
    own_key: OwnKey
    bodies: Bodies
    parsing: Parsing = field(default_factory=Parsing)
    turns: int = 0

    @asynccontextmanager
    async def speaking_as(self, headers: Headers) -> AsyncIterator[ChatClient]:
        """A client with the key of whoever asks."""
        async with self.connections.lent() as client:
            yield client.speaking_as(caller_key(headers, self.own_key.now()), trace_of(headers))

    @contextmanager
    def one_more_turn(self) -> Iterator[None]:
        """Beside those that run. ApiError where these are as many as there may be."""
        most = self.settings.max_turns
        if self.turns >= most:
            raise ApiError(
                503,
                f"{most} answers run through this gateway, which is all that it takes",
                kind=FAILED,
                code="gateway_full",
                retry_after_s=1.0,
            )
        self.turns += 1
        try:
            yield
        finally:
            self.turns -= 1


class AnswerEndpoint:
    """One endpoint as an ASGI app: reads with `read`, answers in `voice`."""

    def __init__(self, backend: Backend, read: Callable[[Mapping[str, Any]], Asked], voice: Voice) -> None:
        self._backend = backend
        self._read = read
        self._voice = voice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        backend, facts = self._backend, facts_of(scope)
        request = Request(scope, receive)
        try:
            limits = backend.settings
            caller_key(request.headers, None)  # what is no key is refused before the body comes
            body = await read_body(request, backend.bodies, limits.max_body_bytes, limits.read_timeout_s)
            with backend.one_more_turn():
                await while_there(receive, self._serve(request.headers, body, send, facts))
        except LeftError:
            facts.note(end="left")

    async def _serve(self, headers: Headers, body: bytes, send: Send, facts: Facts) -> None:
        async with self._backend.speaking_as(headers) as client:
            asked = await self._backend.parsing.asked(body, self._read, client)
        facts.note(stream=asked.stream)
        await self._answer(headers, asked, send, facts)

    async def _answer(self, headers: Headers, asked: Asked, send: Send, facts: Facts) -> None:
        backend = self._backend
        session = session_of(headers, asked.sampling.get("session_id"))
        sampling = asked.sampling if session is None else {**asked.sampling, "session_id": session}
        given = headers.get(RESUME_HEADER) if asked.stream else None
        standing = read_standing(given) if given else None
        broken = None if standing is None else BrokenAnswer(standing.token)
        stream = EventStream(send, backend.settings.write_stall_s, facts)
        try:
            async with backend.leaving.bounded(), backend.speaking_as(headers) as client:
                info = await backend.model.named(client, asked.model)
                if standing is not None:
                    standing.check(asked.sampling.get("max_tokens") or info.limits["context_tokens"])
                events = client.stream(
                    asked.messages, deadline_s=backend.settings.deadline_s, broken=broken, **sampling
                )
                async with aclosing(events):
                    telling = _Telling(self._voice, asked, info, events, facts)
                    if not asked.stream:
                        await telling.whole(send)
                        return
                    frames = telling.frames(Reading(standing), resumed=standing is not None)
                    async with stream.kept_alive(), aclosing(frames):
                        async for frame in frames:
                            await stream.write(frame)
        except (ChatError, ApiError) as error:
            problem = error if isinstance(error, ApiError) else api_error_of(error, asked.renamed)
            if not stream.began:
                raise problem from None
            facts.failed(problem)
            await stream.write(sse.failure(problem))
        await stream.write(b"", more=False)


class _Telling:
    """One answer's events, told in one voice."""

    def __init__(
        self, voice: Voice, asked: Asked, info: ServerInfo, events: AsyncGenerator[Event, None], facts: Facts
    ) -> None:
        self._voice = voice
        self._asked = asked
        self._info = info
        self._events = events
        self._facts = facts
        self._resumed = 0

    async def frames(self, reading: Reading, *, resumed: bool) -> AsyncGenerator[bytes, None]:
        """The answer as events of a stream: what of it the reader lacks. The first comes when the answer has begun."""
        of: Answering | None = None
        token = b""
        said_s = time.monotonic()
        async for event in self._events:
            match event:
                case Started():
                    of, token = self._answering(event), event.resume_token
                    opening = None if resumed else self._voice.opening(of)
                    yield sse.comment("ok") if opening is None else sse.event(opening, reading.event_id(token))
                case Resumed():
                    self._resumed += 1
                case Delta() if of is not None:
                    text, known = reading.new(event.text, len(event.token_ids))
                    logprobs = event.logprobs[known:]
                    if text or logprobs:
                        yield sse.event(self._voice.chunk(of, text, logprobs), reading.event_id(token))
                    elif not reading.caught_up and time.monotonic() - said_s >= _COMMENT_EVERY_S:
                        said_s = time.monotonic()
                        yield sse.comment(f"{reading.tokens} tokens made again")
                case Finished() if of is not None:
                    if not reading.caught_up:
                        raise differs()
                    end = {**self._voice.ending(of, self._reason(event)), "soloist": self._figures(of, event)}
                    yield sse.event(end, reading.event_id(token))
                    if self._asked.include_usage:
                        yield sse.event({**self._voice.accounts(of), "usage": usage(event)})
                    yield sse.DONE

    async def whole(self, send: Send) -> None:
        """The answer in one response."""
        of: Answering | None = None
        texts: list[str] = []
        logprobs: list[TokenLogprobs] = []
        async for event in self._events:
            match event:
                case Started():
                    of = self._answering(event)
                case Resumed():
                    self._resumed += 1
                case Delta():
                    texts.append(event.text)
                    logprobs += event.logprobs
                case Finished() if of is not None:
                    asked_for = None if self._asked.top_logprobs is None else logprobs
                    said = self._voice.whole(of, "".join(texts), asked_for, self._reason(event))
                    body = {**said, "usage": usage(event), "soloist": self._figures(of, event)}
                    response = JSONResponse(body, headers={"x-request-id": of.request_id})
                    await response({"type": "http"}, _nothing, send)
                    return
        raise BrokenStreamError

    def _answering(self, started: Started) -> Answering:
        self._facts.request_id = started.request_id
        return Answering.now(started.request_id, started.model, self._info.numerics_fingerprint)

    def _reason(self, finished: Finished) -> str:
        reason = finish_reason(finished)
        self._facts.note(
            end=finished.reason,
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            resumed=self._resumed,
        )
        if reason is None:
            raise ApiError(
                503,
                f"the server broke the answer off ({finished.reason}), and no other one goes on with it",
                kind=FAILED,
                code=finished.reason,
                retry_after_s=1.0,
                request_id=self._facts.request_id,
            )
        return reason

    def _figures(self, of: Answering, finished: Finished) -> dict[str, Any]:
        return figures(finished, of.request_id, self._resumed)


async def _nothing() -> Any:
    raise RuntimeError("the body of this request has been read")
