"""From the bytes of a body to what they ask for, without keeping other requests waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from service.client import ChatClient, ChatError
from service.gateway.asked import Asked
from service.gateway.errors import api_error_of
from service.gateway.fields import read_json

LARGE_BYTES: Final = 64 * 1024  # a smaller body takes a few milliseconds, whatever it holds

Read = Callable[[Mapping[str, Any]], Asked]


class Parsing:
    """Parses large bodies beside the event loop and one at a time, as the values take many times the bytes; and only
    for callers whom a server knows, as this gateway cannot tell a key from any other word.
    """

    def __init__(self) -> None:
        self._one = ThreadPoolExecutor(1, "body")

    async def asked(self, body: bytes, read: Read, client: ChatClient) -> Asked:
        """What the body asks for. ApiError for what cannot be served. `client` has the key of whoever asks."""
        if len(body) <= LARGE_BYTES:
            return read(read_json(body))
        try:
            await client.load()  # the least that wants a key
        except ChatError as error:
            raise api_error_of(error) from None
        return await asyncio.get_running_loop().run_in_executor(self._one, lambda: read(read_json(body)))
