"""How much work one rendering of a chat template may do. A template comes with the model file: it is not trusted."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

from engine.text.provenance import Sourced

MAX_TEMPLATE_CHARS = 128 * 1024
MAX_STEPS = 1_000_000
MAX_CPU_SECONDS = 2.0
MAX_INTEGER_BITS = 4096
MAX_ITEMS = 250_000
MAX_PADDING = 10_000
_BASE_CHARS = 1 << 20
_CHARS_PER_INPUT_CHAR = 8
_CHARS_PER_STEP = 64
_STEPS_PER_CLOCK = 256


class BoundsError(TemplateRuntimeError):
    """The template wanted more than its share."""


class Budget:
    """What is left for one rendering.

    A step is one loop turn, call, filter, comparison or output, and one more for every 64 characters it handles. The
    clock is the thread's own, so that a busy machine does not make a sound template fail. `max_chars` bounds every
    single string and the whole output; it grows with the messages, which the edge has bounded already.
    """

    def __init__(self, input_chars: int = 0) -> None:
        self.max_chars = _BASE_CHARS + _CHARS_PER_INPUT_CHAR * input_chars
        self._steps = MAX_STEPS + input_chars
        self._until_clock = _STEPS_PER_CLOCK
        self._deadline = time.thread_time() + MAX_CPU_SECONDS

    def spend(self, steps: int = 1) -> None:
        """Take `steps`. Raises BoundsError where they, or the time, have run out."""
        self._steps -= steps
        if self._steps < 0:
            raise BoundsError(f"it takes more than {MAX_STEPS:,} steps")
        self._until_clock -= steps
        if self._until_clock < 0:
            self._until_clock = _STEPS_PER_CLOCK
            if time.thread_time() > self._deadline:
                raise BoundsError(f"it takes more than {MAX_CPU_SECONDS:g} s")

    def spend_on(self, value: Any) -> None:
        """Take the steps that looking at all of `value` costs, however often it holds the same thing inside."""
        has_foreign(value, self)

    def need_chars(self, count: int) -> None:
        """Allow for a string of `count` characters, before it is made where its length can be told."""
        if count > self.max_chars:
            raise BoundsError(f"it makes a text of {count:,} characters; at most {self.max_chars:,} are allowed")
        self.spend(1 + count // _CHARS_PER_STEP)

    def need_items(self, count: int) -> None:
        """Allow for a list of `count` items."""
        if count > MAX_ITEMS:
            raise BoundsError(f"it makes a list of {count:,} items; at most {MAX_ITEMS:,} are allowed")
        self.spend(1 + count // 8)


_current: ContextVar[Budget] = ContextVar("template_budget")


def current() -> Budget:
    """The budget of the rendering that runs in this context; a fresh one while templates are compiled."""
    budget = _current.get(None)
    if budget is None:
        budget = Budget()
        _current.set(budget)
    return budget


def begin(input_chars: int) -> Budget:
    """Start the budget of a new rendering in this context."""
    budget = Budget(input_chars)
    _current.set(budget)
    return budget


def has_foreign(value: Any, budget: Budget) -> bool:
    """Whether a caller's text is anywhere in `value`. Costs a step for each thing seen, so nesting cannot explode."""
    found = False
    pending = [value]
    while pending:
        thing = pending.pop()
        if isinstance(thing, str):
            budget.spend(1 + len(thing) // _CHARS_PER_STEP)
            found = found or isinstance(thing, Sourced)
            continue
        budget.spend()
        if isinstance(thing, Namespace):
            thing = object.__getattribute__(thing, "_Namespace__attrs")
        if isinstance(thing, Mapping):
            budget.spend(len(thing))
            pending.extend(thing.keys())
            pending.extend(thing.values())
        elif isinstance(thing, range):
            budget.spend(len(thing) // 8)
        elif isinstance(thing, Collection):
            budget.spend(len(thing))
            pending.extend(thing)
    return found
