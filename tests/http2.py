"""HTTP/2 as bytes, for what no gRPC library does: floods of resets, and checks of a proxy that speaks no gRPC."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS = 0x0, 0x1, 0x3, 0x4
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW_SIZE = 0x4
CANCEL = 8


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def opening(window: int | None = None) -> bytes:
    """What a client says first. `window`: bytes of each answer that the server may send before it is told to go on."""
    return PREFACE + _frame(
        _SETTINGS, 0, 0, b"" if window is None else struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)
    )


def settings_ack() -> bytes:
    """The answer to the server's settings."""
    return _frame(_SETTINGS, _ACK, 0)


def call(stream: int, path: str, message: bytes, deadline_s: int | None = None) -> bytes:
    """A whole unary or server-streaming gRPC call. `stream` is odd and grows with each call of a connection."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    if deadline_s is not None:
        headers["grpc-timeout"] = f"{deadline_s}S"
    # Literal fields, not indexed, neither name nor value compressed.
    fields = b"\x00".join([b"", *(b"".join(map(_text, header)) for header in headers.items())])
    body = struct.pack(">BI", 0, len(message)) + message
    return _frame(_HEADERS, _END_HEADERS, stream, fields) + _frame(_DATA, _END_STREAM, stream, body)


def reset(stream: int) -> bytes:
    """The client wants no more of this call."""
    return _frame(_RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def _text(text: str) -> bytes:
    assert len(text) < 127, "longer ones need more than a byte for their length"
    return bytes([len(text)]) + text.encode("ascii")
