"""One run for all that looks at it: two servers on the embedded model, readers, and a Prometheus that watched.

Beside them is the page of a pod that would have a GPU.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.observability.graphs import pod_with_graphs
from tests.observability.load import Seen, load
from tests.observability.prometheus import Prometheus, start_prometheus
from tests.running_server import RunningServer, await_serving, launch_server

LASTS_S = 9.0
# As Grafana fills them in: the list of pods, and an interval of at least four scrapes.
VARIABLES = {
    "namespace": "soloist", "model": ".+", "pod": "(stays|leaves)", "__rate_interval": "6s", "__range": "2m",
}  # fmt: skip
OF_GRAPHS = {**VARIABLES, "pod": "replays"}


@dataclass(frozen=True, slots=True)
class Run:
    """What was there to see.

    Attributes:
        seen: by the readers.
        page: the metrics page of the server that stays, once all was over.
        first_page: the same before its model was open.
        begin_s, end_s: of the time with load, seconds since 1970.
    """

    prometheus: Prometheus
    seen: Seen
    page: str
    first_page: str
    begin_s: float
    end_s: float


@pytest.fixture(scope="session")
def run(
    embedded_model: Path, require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """Everything starts at once, and Prometheus first sees a model that loads: what is there from the start is seen."""
    binary = require_tool("prometheus")
    folder = tmp_path_factory.mktemp("observability")
    with ExitStack() as stack:
        flags = ("--model", str(embedded_model), "--device", "cpu", "--context", "2048", "--queue-depth", "3")
        stays = stack.enter_context(launch_server(*flags, log=folder / "stays.log"))
        # Leaving takes three seconds in which it still answers, so that it is seen leaving.
        leaving = (*flags, "--propagation-s", "3", "--grace-s", "0")
        leaves = stack.enter_context(launch_server(*leaving, log=folder / "leaves.log"))
        pods = {"stays": _address(stays), "leaves": _address(leaves)}
        with_graphs = {"replays": stack.enter_context(pod_with_graphs())}
        prometheus = stack.enter_context(start_prometheus(binary, pods | with_graphs, folder))
        prometheus.await_scrapes(1, "stays")
        first_page = _page(stays)
        for server in (stays, leaves):
            await_serving(server.target, server.process, server.log)
        for pod in pods:
            prometheus.await_scrapes(2, pod)
        begin_s = time.time()
        seen = asyncio.run(load(stays.target, leaves.target, leaves.process.terminate, LASTS_S))
        prometheus.await_scrapes(2, "stays")
        yield Run(prometheus, seen, _page(stays), first_page, begin_s, time.time())


def _address(server: RunningServer) -> str:
    return server.metrics_url.removeprefix("http://").removesuffix("/metrics")


def _page(server: RunningServer) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=5) as response:
        return str(response.read().decode())
