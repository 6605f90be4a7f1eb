"""The metrics port keeps answering scrapes, whoever holds connections to it open."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

from service.ops.metrics import Metrics
from service.ops.metrics_port import MetricsAddressError, MetricsEndpoint, serve_metrics

MAX, REQUEST_S = 4, 1.0
BEGUN = b"GET /metrics HTTP/1.1\r\nX-Slow: "


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    opened = serve_metrics(Metrics(), "127.0.0.1:0", MAX, REQUEST_S)
    yield opened
    opened.close()


def connected(endpoint: MetricsEndpoint) -> socket.socket:
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def scrape(endpoint: MetricsEndpoint) -> str:
    with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=30) as page:
        return str(page.read().decode())


def ended(connection: socket.socket) -> bool:
    """Waits until the server has closed it."""
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionError:
        return True


def test_promise_16_connections_that_say_nothing_take_no_more_than_their_places(endpoint: MetricsEndpoint) -> None:
    threads, files = threading.active_count(), psutil.Process().num_fds()
    with contextlib.ExitStack() as held:
        slow = [held.enter_context(connected(endpoint)) for _ in range(100)]
        for connection in slow:
            connection.sendall(BEGUN)
        assert "soloist_requests_total" in scrape(endpoint)
        assert threading.active_count() <= threads + MAX + 1
        assert psutil.Process().num_fds() <= files + len(slow) + 2 * MAX
        assert all(ended(connection) for connection in slow[: -2 * MAX])


def test_promise_16_a_request_that_drips_in_has_its_time_and_no_more(endpoint: MetricsEndpoint) -> None:
    began_s = time.monotonic()
    with connected(endpoint) as connection:
        connection.sendall(BEGUN)
        connection.settimeout(0.1)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began_s < 30:
                connection.sendall(b"x")  # never silent
                with contextlib.suppress(TimeoutError):
                    if connection.recv(1) == b"":
                        break
    assert REQUEST_S <= time.monotonic() - began_s < 30
    assert "soloist_requests_total" in scrape(endpoint)


def test_closing_leaves_nobody_connected() -> None:
    endpoint = serve_metrics(Metrics(), "127.0.0.1:0")
    with connected(endpoint) as connection:
        connection.sendall(BEGUN)
        scrape(endpoint)  # the port has taken both
        endpoint.close()
        assert ended(connection)


@pytest.mark.parametrize("listen", ["[::1]:0", "127.0.0.1:0"])
def test_either_family(listen: str) -> None:
    try:
        endpoint = serve_metrics(Metrics(), listen)
    except MetricsAddressError as error:
        pytest.skip(str(error))
    assert "soloist_requests_total" in scrape(endpoint)
    endpoint.close()


def test_a_port_that_is_taken_is_told_in_one_line(endpoint: MetricsEndpoint) -> None:
    with pytest.raises(MetricsAddressError, match=f"cannot listen on {endpoint.address} for metrics: .*in use"):
        serve_metrics(Metrics(), endpoint.address)
