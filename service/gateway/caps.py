"""How many of each thing a request may have, checked before any of them is looked at.

The servers have the same caps, and say so in GetServerInfo and the README. They are known here too, as a body of a few
megabytes may hold millions of things: each would be read only for a server to refuse them.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Final

from service.gateway.errors import ApiError, wrong

MESSAGES: Final = 1024
PARTS: Final = 1024  # of one message; the servers know texts only
STOP_STRINGS: Final = 16
STOP_TOKEN_IDS: Final = 32
LOGIT_BIAS: Final = 1024
CHOICES: Final = 256
JSON_SCHEMA_BYTES: Final = 64 * 1024
VALUES: Final = 100_000  # of one body, in all; what the other caps let through has far fewer


def no_more_than(path: str, given: Sized, most: int, unit: str) -> None:
    """ApiError for more of them. Costs the same for any number."""
    if len(given) > most:
        raise wrong(path, f"may have {most} {unit} at most; got {len(given)}")


def few_values(body: str) -> None:
    """ApiError for JSON of more values than any request needs.

    Python parses JSON in one piece, and no other thread runs meanwhile: millions of values take it a second. To count
    takes a few milliseconds, whatever there is.
    """
    if len(body) <= VALUES:
        return
    quotes = body.replace("\\\\", "").replace('\\"', "").split('"', 2 * VALUES)
    outside = "".join(quotes[::2])  # of texts
    if len(quotes) > 2 * VALUES or sum(map(outside.count, ",[{")) > VALUES:
        raise ApiError(400, f"the body may have {VALUES} values at most", code="invalid_value")


def fits_in_bytes(path: str, given: Any, most: int) -> None:
    """ApiError for JSON that cannot be written in so many bytes, after that many steps at most.

    Each value takes a byte at least, and so do each character of a text and what parts values; the server counts
    exactly.
    """
    left, open_values = most, [given]
    while open_values:
        value = open_values.pop()
        size = max(1, len(value)) if isinstance(value, str | list | dict) else 1
        left -= size
        if left < 0:
            raise wrong(path, f"may have {most} bytes at most")
        if isinstance(value, list):
            open_values.extend(value)
        elif isinstance(value, dict):
            open_values.extend(value)
            open_values.extend(value.values())
