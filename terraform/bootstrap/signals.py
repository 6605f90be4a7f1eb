"""Being told to end: by the terminal, by whoever closes it, or by whatever runs this."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalledError(BaseException):
    """One of `ENDING` came. Not an Exception: no handler of a command that failed may take it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def raised() -> Iterator[None]:
    """Within, the first of `ENDING` raises a SignalledError, and later ones do nothing.

    They often come in pairs, and the second must not keep us from waiting for what the first one ended. A signal that
    is ignored already, as by nohup, stays so.
    """

    def first(number: int, _frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise SignalledError(number)

    before = {each: signal.getsignal(each) for each in ENDING}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, first)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Within, `ENDING` waits: a process that is being started would be lost to whoever should end it."""
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield
        return
    came: list[int] = []
    before = {each: signal.getsignal(each) for each in ENDING}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)
