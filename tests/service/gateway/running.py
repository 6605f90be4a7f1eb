"""A gateway in this process and loop, on a free port, and what tests say to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI

from engine.history import Resumption
from engine.params import SamplingParams
from service.client import ChatClient
from service.gateway.answering import Backend
from service.gateway.connections import Connections
from service.gateway.serving import GatewayServer, open_backend
from service.gateway.settings import GatewaySettings
from tests.fakes import FakeContext, FakeEngine

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


class NotingEngine(FakeEngine):
    """Keeps the parameters of every turn, as they came to the engine."""

    params: list[SamplingParams]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.params = []

    def generate(
        self,
        context: FakeContext,
        prompt_ids: Any,
        params: SamplingParams,
        resumption: Resumption | None = None,
    ) -> Any:
        self.params.append(params)
        return super().generate(context, prompt_ids, params, resumption)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that listens. `web` speaks to it as any HTTP client."""

    url: str
    server: GatewayServer
    backend: Backend
    web: httpx.AsyncClient
    clients: AsyncExitStack

    async def openai(self, **options: Any) -> Any:
        """OpenAI's own client, closed with the gateway. Its types refuse much of what tests send."""
        client = AsyncOpenAI(**{"base_url": f"{self.url}/v1", "api_key": "unused", "max_retries": 0, **options})
        return await self.clients.enter_async_context(client)

    async def ask(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        """One request that is not streamed."""
        return await self.web.post(CHAT, json=body, headers=headers)


@asynccontextmanager
async def gateway(*targets: str, narrow: bool = False, **changes: Any) -> AsyncIterator[Gateway]:
    """A gateway in front of these servers; gone at the end. `narrow`: little fits on the ways to and from it."""
    settings = GatewaySettings(**{"target": ",".join(targets), "listen": "127.0.0.1:0", "grace_s": 5.0, **changes})
    backend = open_backend(settings)
    server = GatewayServer(backend)
    with socket.create_server(("127.0.0.1", 0)) as port:
        if narrow:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            await backend.connections.close()
            # Else windows grow to megabytes.
            backend.connections = Connections(lambda: ChatClient(targets, options=[("grpc.http2.bdp_probe", 0)]))
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[port]))
        try:
            async with AsyncExitStack() as clients:
                web = await clients.enter_async_context(httpx.AsyncClient(base_url=url, timeout=10.0))
                yield Gateway(url, server, backend, web, clients)
        finally:
            backend.leaving.end_answers()
            server.should_exit = True
            await serving
            await backend.connections.close()


@dataclass(slots=True)
class SseEvent:
    """One event as a reader of the stream sees it."""

    id: str | None = None
    kind: str = "message"
    data: str = ""

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.data)
        return parsed


@dataclass(slots=True)
class Read:
    """A stream, read to its end or as far as wanted."""

    status: int = 0
    events: list[SseEvent] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content", "")
            for event in self.events
            if event.kind == "message" and event.data != "[DONE]"
            for choice in event.json["choices"]
        )

    @property
    def last_id(self) -> str:
        return next(event.id for event in reversed(self.events) if event.id)

    @property
    def whole(self) -> bool:
        return bool(self.events) and self.events[-1].data == "[DONE]"


async def sse(lines: AsyncIterator[str]) -> AsyncIterator[SseEvent]:
    """Events of a stream's lines; comments are left out."""
    event = SseEvent()
    async for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if event.data:
                yield event
            event = SseEvent()
        elif name == "id":
            event.id = value
        elif name == "event":
            event.kind = value
        elif name == "data":
            event.data += value


async def read(
    web: httpx.AsyncClient,
    body: dict[str, Any],
    *,
    characters: int | None = None,
    after: str | None = None,
    into: Read | None = None,
) -> Read:
    """Read a stream until it ends, or until it has given so many characters; then leave. `after` is an event id."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with web.stream("POST", CHAT, json={**body, "stream": True}, headers=headers) as response:
        found = Read() if into is None else into
        found.status = response.status_code
        if response.status_code != 200:
            found.events.append(SseEvent(kind="refused", data=(await response.aread()).decode()))
            return found
        async for event in sse(response.aiter_lines()):
            found.events.append(event)
            if characters is not None and len(found.text) >= characters:
                break
        return found
