"""ChatClient: turns as async iterators, from whichever of its servers can give them."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import grpc

from service.client.answers import (
    Answer,
    BrokenAnswer,
    Delta,
    Event,
    Finished,
    GraphState,
    Messages,
    Resumed,
    ServerInfo,
    ServerLoad,
    Started,
    TokenLogprobs,
    to_proto,
    utf8,
)
from service.client.errors import BrokenStreamError, UnavailableError, bad_request, told_as_ours
from service.client.formats import ResponseFormat, proto_format
from service.client.retries import Retries
from service.client.servers import Server, Servers
from service.client.trust import Tls, bearer
from service.client.turn import ResumeWish, Turn
from soloist.v1 import chat_pb2, chat_pb2_grpc

_Response = TypeVar("_Response")


class Sampling(TypedDict, total=False):
    """Fields of ChatRequest by their own names; what is left out takes the server's default."""

    session_id: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    logit_bias: Mapping[int, float]
    logprobs: bool
    top_logprobs: int
    priority: int
    response_format: ResponseFormat


class ChatClient:
    """A client of one server, or of several that serve the same model.

    Args:
        target: HOST:PORT, or any name that gRPC resolves; several of them in a list, or with commas between. Turns of
            one session go to the same one of these servers, and of those behind HOST, as long as it can be reached.
        tls: whom to trust and, where the server asks, who one is; None is plain text.
        api_key: sent with every call; nobody may read it on the way, so give `tls` too beyond this machine.
        credentials: gRPC's own, in place of `tls`.
        metadata: sent with every call.
        retries: see Retries.
        resume: what becomes of an answer that is broken off by a server that leaves, or by a lost connection. `exact`:
            it goes on with the same words, here or on another address, or fails. `fast`: where that cannot be, it goes
            on with words that may be others. `off`: it ends there.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        retries: Retries | None = None,
        resume: ResumeWish = "exact",
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._retries = retries or Retries()
        self._metadata = (*metadata, *bearer(api_key))
        credentials = tls.credentials() if tls is not None else credentials
        self._servers = Servers(target, credentials, options)
        self._resume = resume

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running answers end with ClosedError."""
        await self._servers.close()

    def speaking_as(self, api_key: str | None, metadata: Sequence[tuple[str, str]] = ()) -> ChatClient:
        """A client over these same connections that sends another key and other metadata; closing one closes both."""
        other = copy.copy(self)
        other._metadata = (*metadata, *bearer(api_key))
        return other

    async def stream(
        self,
        messages: Messages,
        *,
        deadline_s: float | None = None,
        broken: BrokenAnswer | None = None,
        **sampling: Unpack[Sampling],
    ) -> AsyncGenerator[Event, None]:
        """One turn: one Started, any number of Delta, one Finished. Closing the iterator cancels it on the server.

        Until the first token the turn is asked again when a server is full or away; Started is therefore told
        together with the first token. After it, a broken answer is resumed: Resumed says so, and the deltas go on
        where they were. `deadline_s` bounds all attempts together. With `broken` this is the rest of that answer,
        exactly, for a reader who asks for it with the same messages and parameters.

        Raises:
            ChatError: one of its derived types.
        """
        ends_s = None if deadline_s is None else time.monotonic() + deadline_s
        request = _request(messages, sampling)
        with told_as_ours():
            route = await self._servers.route(request.session_id)
        turn = Turn(request, route, self._metadata, self._retries, self._resume, ends_s, broken)
        async with aclosing(turn.events()) as events:
            async for event in events:
                yield event

    async def ask(self, messages: Messages, *, deadline_s: float | None = None, **sampling: Unpack[Sampling]) -> Answer:
        """One turn, whole. As `stream`, for those who need not watch."""
        started: Started | None = None
        finished: Finished | None = None
        texts: list[str] = []
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        resumed: list[Resumed] = []
        async with aclosing(self.stream(messages, deadline_s=deadline_s, **sampling)) as events:
            async for event in events:
                match event:
                    case Started():
                        started = event
                    case Resumed():
                        resumed.append(event)
                    case Delta():
                        texts.append(event.text)
                        ids.extend(event.token_ids)
                        logprobs.extend(event.logprobs)
                    case Finished():
                        finished = event
        if started is None or finished is None:
            raise BrokenStreamError
        return Answer("".join(texts), tuple(ids), started, finished, tuple(logprobs), tuple(resumed))

    async def count_tokens(self, messages: Messages, *, deadline_s: float = 10.0) -> int:
        """How many tokens the server would read. BadRequestError for a text of several contexts: it is not counted."""
        request = chat_pb2.CountTokensRequest(messages=to_proto(messages))
        response = await self._any_server(
            lambda stub: stub.CountTokens(request, timeout=deadline_s, metadata=self._metadata)
        )
        return response.prompt_tokens

    async def server_info(self, *, deadline_s: float = 10.0) -> ServerInfo:
        """What is served."""
        request = chat_pb2.GetServerInfoRequest()
        info = await self._any_server(
            lambda stub: stub.GetServerInfo(request, timeout=deadline_s, metadata=self._metadata)
        )
        graphs = info.graphs
        return ServerInfo(
            info.model,
            info.version,
            info.device,
            info.precision,
            info.numerics_fingerprint,
            GraphState(graphs.enabled, graphs.captured, graphs.pool_bytes, graphs.context_tokens, graphs.eager_reason),
            {field.name: getattr(info.limits, field.name) for field in chat_pb2.Limits.DESCRIPTOR.fields},
            info.decoder or "native",
        )

    async def load(self, *, deadline_s: float = 10.0) -> ServerLoad:
        """How busy the server is."""
        request = chat_pb2.GetLoadRequest()
        load = await self._any_server(lambda stub: stub.GetLoad(request, timeout=deadline_s, metadata=self._metadata))
        return ServerLoad(
            load.active_turns,
            load.queued_turns,
            load.predicted_wait_seconds,
            load.inter_token_seconds,
            load.kv_tokens_used,
            load.kv_tokens_total,
            load.draining,
        )

    async def _any_server(
        self, call: Callable[[chat_pb2_grpc.ChatServiceAsyncStub], Awaitable[_Response]]
    ) -> _Response:
        """The response of the server that has the turns, or of the first after it that is not away."""
        away: set[str] = set()
        while True:
            server: Server = self._servers.current
            try:
                with told_as_ours():
                    return await call(server.stub)
            except UnavailableError:
                away.add(server.target)
                self._servers.pass_on(server)
                if self._servers.current.target in away:
                    raise


def _request(messages: Messages, sampling: Sampling) -> chat_pb2.ChatRequest:
    for name in sampling:
        if name not in Sampling.__annotations__:
            raise TypeError(f"{name} is no field of a turn; known: {', '.join(Sampling.__annotations__)}")
    for index, stop in enumerate(sampling.get("stop", ())):
        utf8(f"stop[{index}]", stop)
    utf8("session_id", sampling.get("session_id", ""))
    try:
        form = sampling.get("response_format")
        plain: dict[str, Any] = {name: value for name, value in sampling.items() if name != "response_format"}
        response_format = None if form is None else proto_format(form)
        return chat_pb2.ChatRequest(messages=to_proto(messages), response_format=response_format, **plain)
    except (ValueError, TypeError) as error:
        raise bad_request("request", str(error)) from None
