"""ChatClient: one channel to a server, turns as async iterators, retries only while nothing was said yet."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import grpc

from service.client.answers import (
    Answer,
    Delta,
    Event,
    Finished,
    GraphState,
    Messages,
    ServerInfo,
    ServerLoad,
    Started,
    TokenLogprobs,
    from_proto,
    to_proto,
    utf8,
)
from service.client.errors import BrokenStreamError, ChatError, OverloadedError, UnavailableError, bad_request, from_rpc
from service.client.trust import Tls, bearer
from soloist.v1 import chat_pb2, chat_pb2_grpc

KEEPALIVE_S = 20.0  # servers of this project accept a ping every 5 s

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A turn may wait in the queue for minutes without a byte: pings tell a dead path from a patient one. The server
    # permits them; without the second line the library would send two and then go quiet.
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # With several addresses behind a name, every one gets turns.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
)

_UNDECIDED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


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


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long to ask again when a server is full or away. Waits double, each between half and whole.

    Attributes:
        attempts: in all; 1 never asks again.
        first_wait_s, longest_wait_s: bounds of the wait. A server's own RetryInfo is honoured where it is longer.
    """

    attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Before attempt number `attempt` (the second is 1)."""
        whole_s = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1))
        return max(whole_s * random.uniform(0.5, 1.0), asked_s or 0.0)


class ChatClient:
    """A client of one server, or of several behind one name.

    Args:
        target: HOST:PORT, or any name that gRPC resolves.
        tls: whom to trust and, where the server asks, who one is; None is plain text.
        api_key: sent with every call; nobody may read it on the way, so give `tls` too beyond this machine.
        credentials: gRPC's own, in place of `tls`.
        metadata: sent with every call.
        retries: see Retries.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        retries: Retries | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._retries = retries or Retries()
        self._metadata = (*metadata, *bearer(api_key))
        credentials = tls.credentials() if tls is not None else credentials
        every = [*_OPTIONS, *options]
        self._channel = (
            grpc.aio.insecure_channel(target, options=every)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=every)
        )
        self._stub = chat_pb2_grpc.ChatServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; running answers end with an error."""
        await self._channel.close()

    async def stream(
        self, messages: Messages, *, deadline_s: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[Event, None]:
        """One turn: one Started, any number of Delta, one Finished. Closing the iterator cancels it on the server.

        Until the first token the turn is asked again when a server is full or away; Started is therefore told
        together with the first token. `deadline_s` bounds all attempts together.

        Raises:
            ChatError: one of its derived types.
        """
        request = _request(messages, sampling)
        ends_s = None if deadline_s is None else time.monotonic() + deadline_s
        for attempt in range(1, self._retries.attempts + 1):
            spoke = False
            try:
                async with aclosing(self._one_attempt(request, ends_s)) as events:
                    async for event in events:
                        spoke = True
                        yield event
                return
            except (OverloadedError, UnavailableError) as error:
                wait_s = self._retries.wait_s(attempt, error.retry_after_s)
                too_late = ends_s is not None and time.monotonic() + wait_s >= ends_s
                if spoke or too_late or attempt == self._retries.attempts:
                    raise
            await asyncio.sleep(wait_s)

    async def ask(self, messages: Messages, *, deadline_s: float | None = None, **sampling: Unpack[Sampling]) -> Answer:
        """One turn, whole. As `stream`, for those who need not watch."""
        started: Started | None = None
        finished: Finished | None = None
        texts: list[str] = []
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        async with aclosing(self.stream(messages, deadline_s=deadline_s, **sampling)) as events:
            async for event in events:
                match event:
                    case Started():
                        started = event
                    case Delta():
                        texts.append(event.text)
                        ids.extend(event.token_ids)
                        logprobs.extend(event.logprobs)
                    case Finished():
                        finished = event
        if started is None or finished is None:
            raise BrokenStreamError
        return Answer("".join(texts), tuple(ids), started, finished, tuple(logprobs))

    async def count_tokens(self, messages: Messages, *, deadline_s: float = 10.0) -> int:
        """How many tokens the server would read."""
        request = chat_pb2.CountTokensRequest(messages=to_proto(messages))
        try:
            response = await self._stub.CountTokens(request, timeout=deadline_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
        return response.prompt_tokens

    async def server_info(self, *, deadline_s: float = 10.0) -> ServerInfo:
        """What is served."""
        try:
            info = await self._stub.GetServerInfo(
                chat_pb2.GetServerInfoRequest(), timeout=deadline_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
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
        try:
            load = await self._stub.GetLoad(chat_pb2.GetLoadRequest(), timeout=deadline_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
        return ServerLoad(
            load.active_turns,
            load.queued_turns,
            load.predicted_wait_seconds,
            load.inter_token_seconds,
            load.kv_tokens_used,
            load.kv_tokens_total,
            load.draining,
        )

    async def _connected(self, ends_s: float | None) -> None:
        """Until the connection stands or has failed. Streams begun before the server has told its limit may exceed it,
        and grpcio 1.85.3 leaves one of those without any end.
        """
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        with suppress(TimeoutError):  # the call itself says so, with gRPC's status
            async with asyncio.timeout(left_s):
                while (state := self._channel.get_state(try_to_connect=True)) in _UNDECIDED:
                    await self._channel.wait_for_state_change(state)

    async def _one_attempt(self, request: chat_pb2.ChatRequest, ends_s: float | None) -> AsyncGenerator[Event, None]:
        await self._connected(ends_s)
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        call = self._stub.Chat(request, timeout=left_s, metadata=self._metadata)
        held: Event | None = None
        ended = False
        try:
            # Read on after `finished`, up to the status: leaving earlier would count as a cancel on the server.
            async for message in call:
                event = from_proto(message)
                if isinstance(event, Started):
                    held = event
                elif event is not None:
                    if held is not None:
                        yield held
                        held = None
                    yield event
                    ended = ended or isinstance(event, Finished)
        except grpc.aio.AioRpcError as error:
            if not ended:
                raise from_rpc(error) from None
        else:
            if not ended:
                raise BrokenStreamError
        finally:
            call.cancel()


def _request(messages: Messages, sampling: Sampling) -> chat_pb2.ChatRequest:
    for name in sampling:
        if name not in Sampling.__annotations__:
            raise TypeError(f"{name} is no field of a turn; known: {', '.join(Sampling.__annotations__)}")
    for index, stop in enumerate(sampling.get("stop", ())):
        utf8(f"stop[{index}]", stop)
    utf8("session_id", sampling.get("session_id", ""))
    try:
        return chat_pb2.ChatRequest(messages=to_proto(messages), **sampling)
    except (ValueError, TypeError) as error:
        raise bad_request("request", str(error)) from None


__all__ = ["KEEPALIVE_S", "ChatClient", "ChatError", "Retries", "Sampling"]
