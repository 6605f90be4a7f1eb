"""The connections to the servers, made anew when the certificates change that they are made with."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from service.client import ChatClient, ChatError
from service.file_watch import FileWatch

logger = logging.getLogger("soloist.gateway")


@dataclass(slots=True)
class _Connected:
    client: ChatClient
    users: int = 0


class Connections:
    """Lends one client to all requests. After a change of `files` it lends another, and closes the one before when the
    last answer over it has ended: gRPC reads certificates once for each channel.
    """

    def __init__(self, connect: Callable[[], ChatClient], files: Sequence[Path] = ()) -> None:
        """`connect` raises ChatError where the files cannot be used, here too."""
        self._connect = connect
        self._watch = FileWatch(files)
        self._now = _Connected(connect())

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[ChatClient]:
        """The client of now, for one request."""
        if self._watch.changed():
            await self._connect_again()
        lent = self._now
        lent.users += 1
        try:
            yield lent.client
        finally:
            lent.users -= 1
            if lent is not self._now and not lent.users:
                await lent.client.close()

    async def close(self) -> None:
        """Answers that run end with ClosedError."""
        await self._now.client.close()

    async def _connect_again(self) -> None:
        try:
            fresh = _Connected(self._connect())
        except ChatError as error:
            self._watch.again()  # perhaps the certificate is new and its key not there yet
            said = "the changed certificates cannot be used; the connections before stay"
            logger.error(said, extra={"fields": {"error": str(error)}})
            return
        before, self._now = self._now, fresh
        logger.info("certificates for the servers read again")
        if not before.users:
            await before.client.close()
