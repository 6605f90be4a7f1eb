"""Logs: readable lines on a terminal, one JSON object a line elsewhere. Never the content of a message.

A record's own facts travel as `extra={"fields": {...}}` and stay apart from its text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

from engine.events import CaptureOutcome, EngineEvent, GraphCaptured, Progress, VerifyMismatch
from service.events import EngineStateChanged, ServiceEvent, SessionEvicted, TurnEnded, TurnRefused

ROOT = "soloist"
logger = logging.getLogger("soloist.server")

_BAR_WIDTH = 24
_LOGGED_SHARE = 0.25  # progress in a log file: a line each quarter


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC, RFC 3339), level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class HumanLines(logging.Formatter):
    """`14:03:22 info  message  key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "  ".join(f"{key}={value}" for key, value in _fields(record).items() if key != "traceback")
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{'  ' + fields if fields else ''}"
        if "traceback" in _fields(record):
            line += "\n" + str(_fields(record)["traceback"]).rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logs(level: str, form: str, stream: TextIO | None = None) -> bool:
    """Send what this project logs to `stream` (standard error). Returns whether lines are for people.

    `form` is auto, human or json; auto is human on a terminal.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanLines() if human else JsonLines())
    for name in (ROOT, "service", "engine", "grpc", "asyncio"):  # all but the first are modules under their own names
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(level.upper() if name in (ROOT, "service", "engine") else logging.WARNING)
        root.propagate = False
    return human


class ProgressLines:
    """Start-up as it goes on: one moving line on a terminal, a log line each quarter elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty()
        self._told: dict[str, float] = {}

    def show(self, progress: Progress) -> None:
        share = progress.done / progress.total if progress.total else 1.0
        if self._moving:
            bar = ("#" * round(share * _BAR_WIDTH)).ljust(_BAR_WIDTH)
            self._stream.write(f"\r{progress.phase:8} [{bar}] {share:4.0%}" + ("\n" if share >= 1 else ""))
            self._stream.flush()
        last = self._told.get(progress.phase, -1.0)
        if share < last:  # the same phase began again
            last = -1.0
        if share >= 1 > last or share - last >= _LOGGED_SHARE:
            self._told[progress.phase] = share
            fields = {"phase": progress.phase, "done": progress.done, "total": progress.total, "unit": progress.unit}
            # On a terminal the moving line has said it.
            logger.log(logging.DEBUG if self._moving else logging.INFO, "start-up", extra={"fields": fields})


class LogEvents:
    """Says in the log what operators want to know of the engine's and the service's events."""

    def __init__(self, progress: ProgressLines | None = None) -> None:
        self._progress = progress or ProgressLines()

    def engine_event(self, event: EngineEvent) -> None:
        """Listener for the engine's events; any thread."""
        match event:
            case Progress():
                self._progress.show(event)
            case GraphCaptured(outcome=CaptureOutcome.CAPTURED):
                fields = {"graph": event.graph, "cause": event.cause.value, "seconds": round(event.seconds, 4)}
                logger.debug("graph captured", extra={"fields": fields})
            case GraphCaptured():
                fields = {"graph": event.graph, "cause": event.cause.value, "outcome": event.outcome.value}
                logger.warning("graph not captured: its steps will run eagerly", extra={"fields": fields})
            case VerifyMismatch():
                fields = {
                    "graph": event.graph,
                    "position": event.position,
                    "replayed_id": event.replayed_id,
                    "eager_id": event.eager_id,
                }
                logger.error("a replayed step and its eager twin disagree", extra={"fields": fields})
            case _:
                pass

    def service_event(self, event: ServiceEvent) -> None:
        """Listener for the service's events; any thread."""
        match event:
            case TurnEnded():
                logger.info("turn", extra={"fields": _turn_fields(event)})
            case TurnRefused():
                fields = {"request_id": event.request_id, "reason": event.reason.value}
                logger.info("turn refused", extra={"fields": fields})
            case EngineStateChanged():
                level = logging.ERROR if event.state == "failed" else logging.INFO
                fields = {"state": event.state} | ({"detail": event.detail} if event.detail else {})
                logger.log(level, "engine", extra={"fields": fields})
            case SessionEvicted():
                logger.debug("idle session evicted", extra={"fields": {"kv_tokens": event.kv_tokens}})
            case _:
                pass


def _turn_fields(event: TurnEnded) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": event.request_id,
        "end": event.end.value,
        "seconds": round(event.duration_s, 4),
        "prompt_tokens": event.prompt_tokens,
        "cached_tokens": event.cached_tokens,
        "completion_tokens": event.completion_tokens,
        "replays": event.replays,
    }
    if event.eager_steps:
        fields["eager_steps"] = dict(event.eager_steps)
    if event.cancel_to_idle_s is not None:
        fields["cancel_to_idle_s"] = round(event.cancel_to_idle_s, 4)
    return fields


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}
