"""Prompts are tokenised and answers' forms compiled on a few threads of their own, so that none holds up health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.params import SamplingParams
from engine.text.form import AnswerForm
from service.errors import PromptsFullError
from service.events import ChatMessage

if TYPE_CHECKING:
    from engine.text.grammar import Grammar

RETRY_AFTER_S = 1.0
Result = TypeVar("Result")


class PromptText(Protocol):
    """The part of engine.text.ChatText that is needed; safe to call from several threads."""

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: None = None, room: int | None = None) -> list[int]: ...
    def grammar(self, form: AnswerForm) -> Grammar: ...


class PromptRoom:
    """At most `threads` prompts are worked on and `waiting` more wait; the next one is refused at once."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._room = threads + waiting
        self._taken = 0

    async def ids(self, text: PromptText, messages: Sequence[ChatMessage], room: int) -> tuple[int, ...]:
        """The rendered prompt's ids, which may be a few more than `room`. Raises PromptsFullError, and the errors of
        `prompt_ids`: ContextLengthError for a prompt of surely more.
        """
        return tuple(await self._work(lambda: text.prompt_ids(messages, None, room)))

    async def sampling(self, text: PromptText, sampling: SamplingParams, form: AnswerForm | None) -> SamplingParams:
        """`sampling`, held to `form` if there is one. Raises PromptsFullError, and the errors of `grammar`."""
        if form is None:
            return sampling
        return replace(sampling, grammar=await self._work(lambda: text.grammar(form)))

    async def _work(self, what: Callable[[], Result]) -> Result:
        if self._taken >= self._room:
            raise PromptsFullError(self._room, RETRY_AFTER_S)
        self._taken += 1
        work: Future[Result] = self._pool.submit(what)
        # The place is free when the thread is, not when the caller gives up: a thread cannot be cancelled.
        work.add_done_callback(self._freer(asyncio.get_running_loop()))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Drops what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _freer(self, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Result]], None]:
        def free() -> None:
            self._taken -= 1

        def done(_: Future[Result]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(free)

        return done
