"""Lines for people on a terminal, JSON elsewhere; facts beside the text; progress without noise."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from engine.events import (
    CaptureCause,
    CaptureOutcome,
    EagerReason,
    GraphCaptured,
    PrefillDone,
    Progress,
    VerifyMismatch,
)
from service.events import EngineStateChanged, Refusal, TurnEnd, TurnEnded, TurnRefused
from service.ops.logs import LogEvents, ProgressLines, set_up_logs

logger = logging.getLogger("soloist.test")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger("soloist")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def written() -> None:
    """Returns once all that was logged has come out."""
    for handler in logging.getLogger("soloist").handlers:
        handler.flush()


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    written()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_pipe_gets_json_with_the_facts_apart() -> None:
    stream = io.StringIO()
    set_up_logs("info", "auto", stream)

    logger.info("call", extra={"fields": {"request_id": "r", "seconds": 0.5}})
    logger.debug("not this")

    (line,) = lines_of(stream)
    assert (line["message"], line["level"], line["request_id"], line["seconds"]) == ("call", "info", "r", 0.5)
    assert str(line["time"]).endswith("Z")


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    set_up_logs("info", "auto", stream)

    logger.info("ready", extra={"fields": {"model": "m"}})
    written()

    assert stream.getvalue().rstrip().endswith("info    ready  model=m")


def test_a_line_stays_one_line_whatever_a_fact_holds() -> None:
    stream = io.StringIO()
    set_up_logs("info", "json", stream)

    logger.info("x", extra={"fields": {"error": "two\nlines \x1b[31m caf\udce9"}})
    written()

    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_progress_moves_one_line_on_a_terminal() -> None:
    stream = Terminal()
    lines = ProgressLines(stream)
    for done in (0, 50, 100):
        lines.show(Progress("load", done, 100, "bytes"))

    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 1
    assert "100%" in stream.getvalue()


def test_progress_is_a_line_each_quarter_elsewhere() -> None:
    stream = io.StringIO()
    set_up_logs("info", "json", stream)
    lines = ProgressLines(stream)
    for done in range(101):
        lines.show(Progress("load", done, 100, "bytes"))
    for done in range(1, 4):
        lines.show(Progress("capture", done, 3, "graphs"))

    told = [(line["phase"], line["done"]) for line in lines_of(stream)]
    assert told == [
        *(("load", done) for done in (0, 25, 50, 75, 100)),
        *(("capture", done) for done in (1, 2, 3)),
    ]


def test_what_operators_want_to_know_is_said() -> None:
    stream = io.StringIO()
    set_up_logs("debug", "json", stream)
    events = LogEvents(ProgressLines(stream))

    events.engine_event(GraphCaptured("b1", CaptureCause.START, CaptureOutcome.OUT_OF_MEMORY, 0.1, 0))
    events.engine_event(VerifyMismatch("b1", 7, 1, 2))
    events.service_event(EngineStateChanged("failed", "gone"))
    events.service_event(TurnRefused("r", Refusal.QUEUE_FULL))
    events.service_event(TurnEnded("r", TurnEnd.CANCELLED, 1.0, 10, 0, 3, 0, 0, {"no_cuda": 3}, cancel_to_idle_s=0.01))

    lines = lines_of(stream)
    assert [line["level"] for line in lines] == ["warning", "error", "error", "info", "info"]
    assert lines[4]["end"] == "cancelled"
    assert lines[4]["eager_steps"] == {"no_cuda": 3}
    assert lines[4]["cancel_to_idle_s"] == 0.01


def test_prompts_that_are_read_eagerly_are_told_of_once_for_each_reason() -> None:
    stream = io.StringIO()
    set_up_logs("info", "json", stream)
    events = LogEvents()
    for _ in range(3):
        events.engine_event(PrefillDone(512, 0.1, "prefill_r512"))
        for reason in (EagerReason.OUT_OF_MEMORY, EagerReason.CAPTURE_FAILED, EagerReason.NO_CUDA):
            events.engine_event(PrefillDone(512, 0.1, None, reason))

    told = [(line["level"], line["reason"]) for line in lines_of(stream)]
    assert told == [("warning", "out_of_memory"), ("warning", "capture_failed")]
