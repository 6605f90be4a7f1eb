"""Logs: readable lines on a terminal, one JSON object a line elsewhere. Never the content of a message.

A record's own facts travel as `extra={"fields": {...}}` and stay apart from its text.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sys
import time
import traceback
from typing import Any, TextIO

from engine.events import CaptureOutcome, EagerReason, EngineEvent, GraphCaptured, PrefillDone, Progress, VerifyMismatch
from service.errors import loggable
from service.events import EngineStateChanged, ServiceEvent, SessionEvicted, TurnEnded, TurnRefused
from service.ops.log_writer import LineHandler

ROOT = "soloist"
logger = logging.getLogger("soloist.server")
audit = logging.getLogger("soloist.audit")  # a line for each turn, so that it can be kept apart

_BAR_WIDTH = 24
_LONGEST_CHAIN = 8  # errors that led to one another
_EXPECTED_EAGER = (EagerReason.NO_CUDA, EagerReason.DISABLED)  # as configured, and said when the server is ready
_LOGGED_SHARE = 0.25  # progress in a log file: a line each quarter


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC, RFC 3339), level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = _traceback(record)
        return json.dumps(line, ensure_ascii=True, default=str)


class HumanLines(logging.Formatter):
    """`14:03:22 info  message  key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "  ".join(f"{key}={value}" for key, value in _fields(record).items() if key != "traceback")
        line = f"{clock} {record.levelname.lower():7} {_message(record)}{'  ' + fields if fields else ''}"
        if "traceback" in _fields(record):
            line += "\n" + str(_fields(record)["traceback"]).rstrip()
        if record.exc_info:
            line += "\n" + _traceback(record)
        return line


def set_up_logs(level: str, form: str, stream: TextIO | None = None) -> LineHandler:
    """Send what this project logs to `stream` (standard error). Returns what takes the records there.

    `form` is auto, human or json; auto is human on a terminal.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    handler = LineHandler(stream, HumanLines() if human else JsonLines())
    # All but the first and the last are modules under their own names.
    for name in (ROOT, "service", "engine", "grpc", "asyncio", "opentelemetry", "py.warnings"):
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(level.upper() if name in (ROOT, "service", "engine") else logging.WARNING)
        root.propagate = False
    return handler


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
        # Lines of one session can be told to be of one, and not whose: clients may call sessions after people.
        self._hash_key = secrets.token_bytes(16)
        self._eager_prefills_told: set[EagerReason] = set(_EXPECTED_EAGER)

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
            case PrefillDone(eager=EagerReason() as reason) if reason not in self._eager_prefills_told:
                self._eager_prefills_told.add(reason)
                logger.warning("prompts are read eagerly, not by replays", extra={"fields": {"reason": reason.value}})
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
                fields = _turn_fields(event)
                if event.session_id:
                    fields["session"] = self._session(event)
                audit.info("turn", extra={"fields": fields})
            case TurnRefused():
                audit.info("turn refused", extra={"fields": _refused_fields(event)})
            case EngineStateChanged():
                level = logging.ERROR if event.state == "failed" else logging.INFO
                detail = {"detail": event.detail} if event.detail else {}
                logger.log(level, "engine", extra={"fields": {"state": event.state, **detail}})
            case SessionEvicted():
                logger.debug("idle session evicted", extra={"fields": {"kv_tokens": event.kv_tokens}})
            case _:
                pass

    def _session(self, event: TurnEnded) -> str:
        named = f"{event.caller}\0{event.session_id}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(named, digest_size=6, key=self._hash_key).hexdigest()


def _refused_fields(event: TurnRefused) -> dict[str, object]:
    return {"request_id": event.request_id, **_caller(event.caller), "reason": event.reason.value}


def _caller(caller: str) -> dict[str, str]:
    return {"caller": caller} if caller else {}


def _turn_fields(event: TurnEnded) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": event.request_id,
        **_caller(event.caller),
        "end": event.end.value,
        "seconds": round(event.duration_s, 4),
        "prompt_tokens": event.prompt_tokens,
        "cached_tokens": event.cached_tokens,
        "completion_tokens": event.completion_tokens,
        "replays": event.replays,
    }
    for name in ("queue_s", "first_token_s"):
        if (seconds := getattr(event, name)) is not None:
            fields[name] = round(seconds, 4)
    if event.eager_steps:
        fields["eager_steps"] = dict(event.eager_steps)
    if event.cancel_to_idle_s is not None:
        fields["cancel_to_idle_s"] = round(event.cancel_to_idle_s, 4)
    return fields


def _message(record: logging.LogRecord) -> str:
    """asyncio's own lines go on with the repr of a task, and so with that of its error."""
    return record.getMessage().partition("\n")[0] if record.name == "asyncio" else record.getMessage()


def _traceback(record: logging.LogRecord) -> str:
    """As Python writes it, but of an error only what `loggable` lets through."""
    error = record.exc_info[1] if record.exc_info else None
    parts: list[str] = []
    while error is not None and len(parts) < _LONGEST_CHAIN:
        parts.append("".join([*traceback.format_tb(error.__traceback__), loggable(error)]))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter\n".join(reversed(parts))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}
