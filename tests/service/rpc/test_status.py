"""One table from errors to statuses; texts are fit for every client."""

from __future__ import annotations

import inspect

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from engine import errors as engine_errors
from service import errors as service_errors
from service.rpc import status
from service.rpc.status import INTERNAL, INTERNAL_TEXT, MAX_TEXT_CHARS, TABLE, row_of, safe_text, wire_status

# Not the caller's fault, nor to be asked again: deliberately INTERNAL.
SILENT = {
    engine_errors.EngineError, engine_errors.CheckpointError, engine_errors.UnsupportedModelError,
    engine_errors.DeviceError, engine_errors.GraphError, engine_errors.StepError, engine_errors.OutOfDeviceMemoryError,
    service_errors.ServiceError, service_errors.TurnFailedError, service_errors.RefusedError,
}  # fmt: skip


def detail_of(error: BaseException, kind: type) -> object:
    parsed = status_pb2.Status.FromString(wire_status(error, "r1").details)
    for packed in parsed.details:
        if packed.Is(kind.DESCRIPTOR):  # type: ignore[attr-defined]
            found = kind()
            packed.Unpack(found)
            return found
    return None


@pytest.mark.parametrize("module", [engine_errors, service_errors], ids=lambda module: module.__name__)
def test_every_error_of_the_trees_has_a_row_or_is_silent_on_purpose(module: object) -> None:
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Exception) and kind.__module__ == module.__name__:  # type: ignore[attr-defined]
            assert kind in SILENT or any(issubclass(kind, row.error) for row in TABLE), kind


def test_no_row_hides_behind_its_base() -> None:
    for place, row in enumerate(TABLE):
        assert not any(issubclass(row.error, before.error) for before in TABLE[:place]), row


def test_a_wrong_field_is_named_twice_over() -> None:
    error = engine_errors.InvalidRequestError("top_p", "must be above 0; got 0.0")
    wire = wire_status(error, "r1")

    assert wire.code is grpc.StatusCode.INVALID_ARGUMENT
    violation = detail_of(error, error_details_pb2.BadRequest).field_violations[0]  # type: ignore[attr-defined]
    assert (violation.field, violation.description) == ("top_p", "must be above 0; got 0.0")
    assert detail_of(error, error_details_pb2.ErrorInfo).reason == "INVALID_FIELD"  # type: ignore[attr-defined]
    assert detail_of(error, error_details_pb2.RequestInfo).request_id == "r1"  # type: ignore[attr-defined]


def test_no_room_comes_with_a_time_to_ask_again() -> None:
    error = service_errors.QueueFullError(16, 2.5)

    assert wire_status(error, "r").code is grpc.StatusCode.RESOURCE_EXHAUSTED
    delay = detail_of(error, error_details_pb2.RetryInfo).retry_delay  # type: ignore[attr-defined]
    assert delay.seconds + delay.nanos / 1e9 == 2.5


@pytest.mark.parametrize(
    "error", [ValueError("secret"), RuntimeError("/etc/passwd"), engine_errors.StepError("kernel")]
)
def test_internal_says_nothing_of_the_insides(error: Exception) -> None:
    wire = wire_status(error, "r1")

    assert row_of(error) is INTERNAL
    assert wire.text == INTERNAL_TEXT
    assert str(error).encode() not in wire.details
    assert type(error).__name__.encode() not in wire.details


def test_txt_11_texts_are_fit_for_the_wire() -> None:
    awkward = "caf\udce9 日本 \x1b[31m\x00 " + "x" * 10_000

    text = safe_text(awkward)

    text.encode("utf-8")
    assert len(text) <= MAX_TEXT_CHARS + 40
    assert text.isprintable()
    assert "日本" in text
    wire_status(engine_errors.InvalidRequestError("messages[0].content", awkward), "r")


def test_reasons_are_a_closed_set() -> None:
    assert set(status.REASONS) >= {row.reason for row in TABLE}
    assert all(reason.isupper() for reason in status.REASONS)
