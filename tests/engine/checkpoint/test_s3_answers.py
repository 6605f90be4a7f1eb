"""Servers of objects that answer what no server should: each ends in one line, soon, and with little memory."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from engine.checkpoint import RemoteOptions, open_checkpoint
from engine.errors import CheckpointError

CONTENT = b'{"model_type": "llama"}'
SHARD = "m/a.safetensors"


@dataclass(slots=True)
class Hostile:
    """A server with a folder `m`. `listing` and `body` write what it answers, after the status line of a 200 or 206."""

    listing: Callable[[BaseHTTPRequestHandler, int], None]
    body: Callable[[BaseHTTPRequestHandler], None] = lambda handler: whole(handler, CONTENT)
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


def whole(handler: BaseHTTPRequestHandler, body: bytes, status: int = 206, **headers: str) -> None:
    """Answer with this."""
    handler.send_response(status)
    for name, value in (headers | {"Content-Length": str(len(body)), "Connection": "close"}).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Answer with chunks for ever."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")


def dripping(ended: threading.Event) -> Callable[..., None]:
    """Answer with a byte now and then."""

    def drip(handler: BaseHTTPRequestHandler, *_: object) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not ended.wait(0.02):
            handler.wfile.write(b"<")
            handler.wfile.flush()

    return drip


def entry(key: str, size: object = len(CONTENT), etag: str = hashlib.md5(CONTENT).hexdigest()) -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag></Contents>"


SOUND = (entry("m/config.json"), entry(SHARD))


def page(*entries: str, more: str = "") -> bytes:
    """One page of a listing; `more` is where the next one begins."""
    token = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{token}{''.join(entries)}</ListBucketResult>".encode()


def listed(*entries: str) -> Callable[[BaseHTTPRequestHandler, int], None]:
    return lambda handler, _: whole(handler, page(*entries), 200)


@contextmanager
def serving(hostile: Hostile) -> Iterator[str]:
    """Its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            hostile.asked.append(self.path)
            try:
                if "list-type" in parse_qs(urlsplit(self.path).query):
                    hostile.listing(self, len(hostile.asked))
                else:
                    hostile.body(self)
            except OSError:  # who asked has left
                pass

        do_HEAD = do_GET  # noqa: N815 - the name of the base class

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            hostile.ended.set()
            server.shutdown()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")
    monkeypatch.setattr("engine.checkpoint.s3._ATTEMPTS", 1)


def refusal(hostile: Hostile, cache: Path | None) -> str:
    """What opening a model from it says."""
    with serving(hostile) as url, pytest.raises(CheckpointError) as caught:
        open_checkpoint("s3://bucket/m", None, RemoteOptions(url, cache))
    said = str(caught.value)
    assert said.isprintable()
    return said


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        (listed("<Contents><Key>m/a.json</Key><Size>2</Size></Contents>"), "without its key, size or ETag: 'm/a.json'"),
        (listed("<Contents><Key>m/a.json</Key><ETag>e</ETag></Contents>"), "without its key, size or ETag: 'm/a.json'"),
        (listed("<Contents><Size>2</Size><ETag>e</ETag></Contents>"), "without its key, size or ETag: None"),
        (listed(entry("other/a.json")), "'other/a.json', which is not under the prefix"),
        (listed(entry("m/a.json", size=-5)), "'m/a.json' with -5 bytes .*, which cannot be"),
        (listed(entry("m/a.json", size=2**63)), f"'m/a.json' with {2**63} bytes .*, which cannot be"),
        (listed(entry("m/a.json", etag="a&#10;16777216&#10;0")), "ETag 'a.*, which cannot be"),
        (listed(*(entry(f"m/{i}.json") for i in range(10_001))), "more than 10000 objects or 30 pages"),
        (lambda handler, count: whole(handler, page(more=f"t{count}"), 200), "more than 10000 objects or 30 pages"),
        (lambda handler, _: endless(handler), "gives more than the 8388608 bytes"),
    ],
)
def test_a_listing_that_cannot_be_is_refused(
    listing: Callable[[BaseHTTPRequestHandler, int], None], says: str, tmp_path: Path
) -> None:
    assert re.search(f"s3://bucket/m: http://127.0.0.1:.* {says}", refusal(Hostile(listing), tmp_path / "cache"))


def test_ranges_without_number_are_not_counted_one_by_one(tmp_path: Path) -> None:
    hostile = Hostile(listed(entry("m/config.json"), entry(SHARD, size=45 * 10**12)))

    assert re.search(
        r"has [\d.]+ [GT]iB free; s3://bucket/m takes 40\.9 TiB more", refusal(hostile, tmp_path / "cache")
    )
    assert len(hostile.asked) == 1


@pytest.mark.parametrize("cached", [True, False])
def test_an_object_without_end_is_read_as_far_as_was_asked(cached: bool, tmp_path: Path) -> None:
    said = refusal(Hostile(listed(*SOUND), endless), tmp_path / "cache" if cached else None)

    assert re.search(f"m/[ac].*: http://127.* gives more than the {len(CONTENT)} bytes", said)


@pytest.mark.parametrize("what", ["listing", "body"])
def test_a_server_that_drips_is_given_up(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.checkpoint.s3_answers._PACE_S", 0.3)
    hostile = Hostile(listed(*(entry(name, size=1_000_000) for name in ("m/config.json", SHARD))))
    setattr(hostile, what, dripping(hostile.ended))

    assert re.search(r"gave \d+ bytes in 0 s; less than 16384 a second", refusal(hostile, tmp_path / "cache"))


def test_a_slow_link_is_no_drip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.checkpoint.s3_answers._PACE_S", 0.0)
    monkeypatch.setattr("engine.checkpoint.s3_answers._LEAST_BYTES_S", 1)

    assert "architectures is missing" in refusal(Hostile(listed(*SOUND)), tmp_path / "cache")


def test_a_redirect_to_itself_is_followed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def redirect(handler: BaseHTTPRequestHandler, *_: object) -> None:
        whole(handler, b"<Error><Code>TemporaryRedirect</Code></Error>", 307, Location=handler.path)

    hostile = Hostile(redirect, redirect)

    assert "redirects to another place; give that place as the endpoint" in refusal(hostile, tmp_path / "cache")
    assert len(hostile.asked) == 2
    assert len(caplog.records) < 10


@pytest.mark.parametrize("folder", ["missing", "full"])
def test_headers_without_a_place_for_them_are_one_sentence(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing" if folder == "missing" else tmp_path))
    monkeypatch.setattr(Path, "write_bytes", full)

    said = refusal(Hostile(listed(*SOUND)), None)

    assert re.search("(No such file|No space left).*give TMPDIR a folder with room, or set --model-cache", said)
    assert not list(tmp_path.glob("soloist-*"))
