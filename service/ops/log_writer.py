"""Lines on their way to standard error, written by a thread of their own: whoever logs never waits for who reads.

Nobody may read a pipe, and somebody may stop a terminal. What does not fit into the room for waiting lines is dropped
and counted, and a line says so once lines are read again.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

ROOM_BYTES = 4 << 20
LAST_WORDS_S = 1.0  # what waits at the end is given so long
_LINE_COST_BYTES = 100  # of an entry beside its text: empty lines are bounded too
_WRITE_BYTES = 1 << 16  # at once: the capacity of a pipe

Write = Callable[[bytes], None]


class LogWriter:
    """A bounded queue of lines and the thread that writes them. Every method may be called from any thread.

    Args:
        write: writes bytes, and may block. OSError: they are lost.
        lost: the line that says how many lines were dropped.
        room_bytes: of lines that may wait, with some for each line beside its text.
    """

    def __init__(self, write: Write, lost: Callable[[int], str], room_bytes: int) -> None:
        self._write = write
        self._lost = lost
        self._room_bytes = room_bytes
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._taken_bytes = 0
        self._writing = False
        self._closed = False
        self._dropped = 0
        self._told = 0  # drops that a line has told of
        # A daemon: it may be in a write that never returns.
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines that found no room, or that could not be written."""
        return self._dropped

    def put(self, line: str) -> None:
        """Let a line wait, or drop it. Returns at once."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closed or self._taken_bytes + _cost(data) > self._room_bytes:
                self._dropped += 1
                return
            self._taken_bytes += _cost(data)
            self._lines.append(data)
            self._changed.notify_all()

    def drop(self) -> None:
        """Count a line that could not be made."""
        with self._changed:
            self._dropped += 1

    def flush(self, timeout_s: float = LAST_WORDS_S) -> bool:
        """Wait until all is written, at most so long, and not at all once closed. Returns whether it is."""
        with self._changed:
            # At exit Python flushes once more what `logging.shutdown` has flushed: one wait is enough.
            return self._changed.wait_for(self._all_written, 0.0 if self._closed else timeout_s)

    def close(self) -> None:
        """Let the thread end once all that waits is written. Later lines are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _all_written(self) -> bool:
        return not self._lines and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines) or self._closed)
                if not self._lines:
                    return
                lines = self._some()
                self._writing = True
            lost = self._try(b"".join(lines), len(lines))
            told = self._dropped
            if not lost and told > self._told:
                self._try((self._lost(told - self._told) + "\n").encode(), 0)
                self._told = told
            with self._changed:
                self._dropped += lost
                self._taken_bytes -= sum(map(_cost, lines))
                self._writing = False
                self._changed.notify_all()

    def _some(self) -> list[bytes]:
        """As many lines as one write takes: the more wait, the fewer writes they cost."""
        lines = [self._lines.popleft()]
        size = len(lines[0])
        while self._lines and size + len(self._lines[0]) <= _WRITE_BYTES:
            size += len(self._lines[0])
            lines.append(self._lines.popleft())
        return lines

    def _try(self, data: bytes, lines: int) -> int:
        """Write; the number of lines that were lost."""
        try:
            self._write(data)
        except (OSError, ValueError):  # the reader is gone, the disk is full, the stream is closed
            return lines
        return 0


class LineHandler(logging.Handler):
    """Formats records where they are made and leaves the lines to a `LogWriter`."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter, room_bytes: int = ROOM_BYTES) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = LogWriter(_writing_to(stream), self._lost, room_bytes)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a record that cannot be formatted; to print why might block
            self.writer.drop()
            return
        self.writer.put(line)

    def flush(self) -> None:
        """Called by `logging.shutdown`, and so at exit: last words come out, if anybody reads."""
        self.writer.flush()

    def close(self) -> None:
        """No more records."""
        self.writer.close()
        super().close()

    def _lost(self, lines: int) -> str:
        now = logging.makeLogRecord(
            {
                "name": "soloist.server",
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "log lines were dropped: nobody read them in time",
                "fields": {"dropped": lines},
            }
        )
        return self.format(now)


def _cost(data: bytes) -> int:
    return len(data) + _LINE_COST_BYTES


def _writing_to(stream: TextIO) -> Write:
    """Writes to the stream's descriptor where it has one: a thread that is stuck in `stream` would hold its lock, and
    Python, which flushes standard error at exit, would die of that.
    """
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, ValueError):

        def to_memory(data: bytes) -> None:
            stream.write(data.decode())
            stream.flush()

        return to_memory

    def to_descriptor(data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:  # who shares the pipe with us made it so
                poll = select.poll()
                poll.register(descriptor, select.POLLOUT)
                poll.poll()

    return to_descriptor
