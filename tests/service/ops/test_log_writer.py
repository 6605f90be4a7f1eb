"""Who logs never waits for who reads: what finds no room is dropped, counted and told of."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from service.ops.drain import DrainTimes
from service.ops.log_writer import LAST_WORDS_S, LineHandler, LogWriter
from service.ops.logs import JsonLines


class Gate:
    """A reader that reads when it is told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.read = b""

    def write(self, data: bytes) -> None:
        self.entered.set()
        assert self.open.wait(30)
        self.read += data


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_lines_beyond_the_room_are_dropped_and_told_of_once_somebody_reads(gate: Gate) -> None:
    writer = LogWriter(gate.write, lambda lines: f"{lines} dropped", room_bytes=1000)
    for number in range(100):
        writer.put(f"line {number}")  # returns, though nobody reads
    dropped = writer.dropped
    assert 80 <= dropped < 100
    assert not writer.flush(0.05)

    gate.open.set()
    assert writer.flush(30)
    writer.put("after")
    assert writer.flush(30)

    kept = [f"line {number}" for number in range(100 - dropped)]
    # The line about what is missing stands where it is missing, or after what had room meanwhile.
    told = gate.read.decode().splitlines()
    assert [line for line in told if "dropped" not in line] == [*kept, "after"]
    assert [line for line in told if "dropped" in line] == [f"{dropped} dropped"]
    assert writer.dropped == dropped


def test_what_cannot_be_written_is_counted_and_the_thread_lives_on() -> None:
    read, fails = [], [True]

    def write(data: bytes) -> None:
        if fails[0]:
            raise BrokenPipeError
        read.append(data)

    writer = LogWriter(write, lambda lines: f"{lines} dropped", room_bytes=1000)
    writer.put("lost")
    assert writer.flush(30)
    assert writer.dropped == 1

    fails[0] = False
    writer.put("kept")
    assert writer.flush(30)
    assert b"".join(read) == b"kept\n1 dropped\n"


def test_a_pipe_that_is_full_and_does_not_block_gets_every_byte_in_the_end() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        handler = LineHandler(stream, JsonLines())
        for number in range(2000):
            handler.emit(logging.makeLogRecord({"msg": f"{number} " + "x" * 100}))
        lines = [json.loads(reader.readline()) for _ in range(2000)]
        handler.close()

    assert [int(line["message"].split()[0]) for line in lines] == list(range(2000))
    assert handler.writer.dropped == 0


def test_a_record_that_cannot_be_formatted_is_counted(gate: Gate) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as stream:
        handler = LineHandler(stream, JsonLines())
        handler.emit(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
        handler.close()

        assert handler.writer.dropped == 1


def test_promise_04_last_words_have_their_part_in_the_time_to_leave() -> None:
    assert DrainTimes(0.0, 0.0).log_s == LAST_WORDS_S
