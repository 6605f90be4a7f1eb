"""Room for prompts is bounded, and who finds none is told of prompts, not of turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from service.errors import PromptsFullError, QueueFullError
from service.events import ChatMessage
from service.rpc.prompts import PromptRoom
from service.rpc.status import wire_status


class SlowText:
    """Reads a prompt when it may."""

    def __init__(self) -> None:
        self.may_read = threading.Event()

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: None = None, room: int | None = None) -> list[int]:
        assert self.may_read.wait(20)
        return [1, 2, 3]

    def grammar(self, form: Any) -> Any:
        raise AssertionError("nobody asked for a form")


async def test_one_prompt_too_many_is_refused_at_once_and_later_ones_are_not() -> None:
    text, room = SlowText(), PromptRoom(threads=1, waiting=2)
    reading = [asyncio.create_task(room.ids(text, (), 9)) for _ in range(3)]
    await asyncio.sleep(0)  # lets each take its place

    with pytest.raises(PromptsFullError, match=r"^3 prompts are being tokenised or wait for it") as caught:
        await room.ids(text, (), 9)
    assert isinstance(caught.value, QueueFullError)
    assert wire_status(caught.value, "r").reason == "QUEUE_FULL"

    text.may_read.set()
    assert await asyncio.gather(*reading) == [(1, 2, 3)] * 3
    assert await room.ids(text, (), 9) == (1, 2, 3)
    room.close()
