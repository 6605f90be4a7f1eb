"""A conversation on one stream: say, interrupt, say again. Each say is a turn with a `finished` of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from engine.errors import InvalidRequestError
from service.rpc.convert import refuse_unknown
from soloist.v1 import chat_pb2


@dataclass(slots=True)
class Say:
    """One thing said.

    Attributes:
        request_id: of its turn.
        interrupted: nobody wants its answer any more.
    """

    request: chat_pb2.ChatRequest
    request_id: str
    interrupted: bool = False


class Conversation:
    """One Converse stream. Reads ahead by one say, so that an interruption is heard while an answer is told.

    Args:
        stream_id: request id of the stream; its says are numbered below it.
        play: plays one say to its end; gives its events.
        interrupt: breaks a playing turn off by its request id.
    """

    def __init__(
        self,
        stream_id: str,
        play: Callable[[Say], AsyncGenerator[chat_pb2.ChatEvent, None]],
        interrupt: Callable[[str], bool],
    ) -> None:
        self._stream_id = stream_id
        self._play = play
        self._interrupt = interrupt
        self._latest: Say | None = None
        self._says: asyncio.Queue[Say | None] = asyncio.Queue(maxsize=1)

    async def events(
        self, actions: AsyncIterator[chat_pb2.ConverseRequest]
    ) -> AsyncGenerator[chat_pb2.ChatEvent, None]:
        """Until the client has said its last and has its answer. Raises what ended the stream otherwise."""
        reader = asyncio.create_task(self._read(actions))
        try:
            while (say := await self._says.get()) is not None:
                async with aclosing(self._play(say)) as events:
                    async for event in events:
                        yield event
            await reader
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reader

    async def _read(self, actions: AsyncIterator[chat_pb2.ConverseRequest]) -> None:
        count = 0
        try:
            async for action in actions:
                refuse_unknown(action, "action")
                match action.WhichOneof("action"):
                    case "say":
                        self._break_off()
                        self._latest = Say(action.say, f"{self._stream_id}-{count}")
                        count += 1
                        await self._says.put(self._latest)
                    case "interrupt":
                        self._break_off()
                    case _:
                        raise InvalidRequestError("action", "must be say or interrupt")
        except BaseException:
            self._break_off()
            raise
        finally:
            with suppress(asyncio.CancelledError):
                await self._says.put(None)

    def _break_off(self) -> None:
        if self._latest is not None:
            self._latest.interrupted = True
            self._interrupt(self._latest.request_id)
