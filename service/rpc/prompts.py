"""Prompts are rendered and tokenised on a few threads of their own, so that a long one cannot hold up health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from service.errors import QueueFullError
from service.events import ChatMessage

RETRY_AFTER_S = 1.0


class PromptText(Protocol):
    """The part of engine.text.ChatText that is needed; safe to call from several threads."""

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: None = None) -> list[int]: ...


class PromptRoom:
    """At most `threads` prompts are worked on and `waiting` more wait; the next one is refused at once."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._room = threads + waiting
        self._taken = 0

    async def ids(self, text: PromptText, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The rendered prompt's ids. Raises QueueFullError, and the errors of `prompt_ids`."""
        if self._taken >= self._room:
            raise QueueFullError(self._room, RETRY_AFTER_S)
        self._taken += 1
        work: Future[list[int]] = self._pool.submit(text.prompt_ids, messages)
        # The place is free when the thread is, not when the caller gives up: a thread cannot be cancelled.
        work.add_done_callback(self._freer(asyncio.get_running_loop()))
        ids = await asyncio.wrap_future(work)
        return tuple(ids)

    def close(self) -> None:
        """Drops what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _freer(self, loop: asyncio.AbstractEventLoop) -> Callable[[Future[list[int]]], None]:
        def free() -> None:
            self._taken -= 1

        def done(_: Future[list[int]]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(free)

        return done
