"""A response of server-sent events: its headers come with its first bytes, and no silence lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Send

from service.gateway import sse
from service.gateway.log import Facts
from service.gateway.reading import LeftError

# Proxies cut connections on which nothing comes for a minute or half of one. A queue that is full says so at once, so
# that its 429 is not cut off by the headers that go with the first comment.
LONGEST_SILENCE_S = 15.0


class EventStream:
    """One response to one reader."""

    def __init__(self, send: Send, stall_s: float, facts: Facts) -> None:
        self._send = send
        self._stall_s = stall_s
        self._facts = facts
        self._writing = asyncio.Lock()
        self._said_s = asyncio.get_running_loop().time()
        self.began = False

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Waits for a reader who is behind: nothing is read from the server meanwhile. LeftError for one who sleeps."""
        limit = asyncio.timeout(self._stall_s)
        try:
            async with limit, self._writing:
                await self._write(body, more=more)
        except TimeoutError:
            if limit.expired():
                raise LeftError from None
            raise

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Meanwhile a comment breaks each silence. Readers of events pass over it."""
        keeping = asyncio.create_task(self._break_silences())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _break_silences(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._said_s + LONGEST_SILENCE_S - loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            async with self._writing:
                if loop.time() - self._said_s >= LONGEST_SILENCE_S:
                    await self._write(sse.comment("waiting"), more=True)

    async def _write(self, body: bytes, *, more: bool) -> None:
        if not self.began:
            self.began = True
            headers = {**sse.HEADERS, **({"x-request-id": self._facts.request_id} if self._facts.request_id else {})}
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._said_s = asyncio.get_running_loop().time()
