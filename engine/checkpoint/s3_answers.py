"""What a server of objects answers, within bounds: no more bytes than were asked for, and no slower than a least pace.

botocore itself reads an answer to its end, however long that is or takes, and a server may be anybody's.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

_MOST_BYTES = 8 << 20  # of an answer that is no part of an object: a page of a listing has 1 MiB
_PIECE_BYTES = 1 << 20
# Of one connection, of which a download has several: a slow link is none that drips.
_LEAST_BYTES_S, _PACE_S = 16 << 10, 60.0
_REDIRECTS = (301, 302, 307, 308)


class AnswerError(Exception):
    """An answer goes beyond its bounds. The text goes on after the server's name."""


class BoundedAnswers:
    """Handler of a client's `before-send` event: sends the request and gives an answer that is all here."""

    def __init__(self, client: Any) -> None:
        # No public name leads to it; one made here would not know the client's certificates and proxies.
        self._session = client._endpoint.http_session

    def __call__(self, request: Any, event_name: str, **_: object) -> Any:
        """The answer. Raises AnswerError, and botocore's errors for connections."""
        from botocore.awsrequest import AWSResponse

        request.stream_output = True  # else it is read to its end before anybody can look
        answer = self._session.send(request)
        ours = answer.status_code in _REDIRECTS and "x-amz-bucket-region" not in answer.headers
        if ours and event_name.endswith(".HeadBucket"):
            # botocore would ask for the bucket's region once more, within its question for the bucket's region.
            answer.raw.close()
            raise AnswerError("redirects to another place; give that place as the endpoint")
        most = _asked_bytes(request) if answer.status_code < 300 else _MOST_BYTES
        body = _Body(_read(request, answer.raw, most))
        return AWSResponse(answer.url, answer.status_code, answer.headers, body)


class _Body(io.BytesIO):
    """Bytes in place of a connection."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _asked_bytes(request: Any) -> int:
    asked = request.headers.get("Range")
    if asked is None:
        return _MOST_BYTES
    text = asked.decode() if isinstance(asked, bytes) else asked  # what is signed is bytes
    first, _, last = text.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1


def _read(request: Any, raw: Any, most: int) -> bytes:
    """To the end; the connection is closed where that is not reached."""
    from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
    from urllib3 import exceptions

    try:
        return _paced(raw, most)
    except exceptions.ReadTimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from None
    except exceptions.ProtocolError as error:
        raise ConnectionClosedError(endpoint_url=request.url, error=error, request=request) from None
    except exceptions.HTTPError as error:
        raise HTTPClientError(error=error) from None
    except AnswerError:
        raw.close()
        raise


def _paced(raw: Any, most: int) -> bytes:
    data = bytearray()
    since_s, before = time.monotonic(), 0
    # As it comes: a read of a whole piece may wait for it as long as single bytes arrive.
    while piece := raw.read1(min(_PIECE_BYTES, most + 1 - len(data)), decode_content=False):
        data += piece
        if len(data) > most:
            raise AnswerError(f"gives more than the {most} bytes that the answer may have")
        took_s = time.monotonic() - since_s
        if took_s >= _PACE_S:
            if len(data) - before < took_s * _LEAST_BYTES_S:
                raise AnswerError(
                    f"gave {len(data) - before} bytes in {took_s:.0f} s; less than {_LEAST_BYTES_S} a second is no "
                    "connection to load a model over"
                )
            since_s, before = time.monotonic(), len(data)
    return bytes(data)
