"""How a gateway leaves: not ready first, then no new requests, then no answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.gateway.errors import FAILED, ApiError


class Leaving:
    """Knows the answers that run, and whether they may go on."""

    def __init__(self) -> None:
        self.announced = False
        self._over = False
        self._running: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """While an answer runs. ApiError where it was too late for it."""
        try:
            async with asyncio.timeout(0 if self._over else None) as limit:
                self._running.add(limit)
                try:
                    yield
                finally:
                    self._running.discard(limit)
        except TimeoutError:
            if not self._over:
                raise
            raise ApiError(
                503, "this gateway leaves; go on at another one", kind=FAILED, code="draining", retry_after_s=1.0
            ) from None

    def announce(self) -> None:
        """Say so to whoever asks, and go on."""
        self.announced = True

    def end_answers(self) -> None:
        """What still runs ends now."""
        self._over = True
        now = asyncio.get_running_loop().time()
        for limit in self._running:
            limit.reschedule(now)
