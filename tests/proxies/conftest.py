"""Two replicas of a tiny model, and what they answer while nobody touches them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from service.client import Answer
from tests.checkpoints import Sizes, write_tiny_folder
from tests.proxies.load import unbroken
from tests.proxies.replicas import Replica

FLAGS = (
    *("--device", "cpu", "--threads", "1", "--context", "512", "--prefill-chunk", "16"),
    *("--max-active-turns", "2", "--propagation-s", "1"),
    *("--grace-s", "0.3"),  # less than an answer takes: some must go on elsewhere
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replicas and the right answers to every question of the load."""

    replicas: list[Replica]
    right: list[Answer]

    @property
    def targets(self) -> list[str]:
        return [replica.target for replica in self.replicas]


@pytest.fixture(scope="session")
def served_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("replicas")
    model = write_tiny_folder(folder / "model", sizes=Sizes(layers=4, width=128, context=512))
    replicas = [Replica(folder / f"replica-{n}.log", "--model", str(model), *FLAGS) for n in (1, 2)]
    try:
        for replica in replicas:
            replica.launch()
        for replica in replicas:
            replica.await_serving()
        yield Pair(replicas, asyncio.run(unbroken(replicas[0].target)))
    finally:
        for replica in replicas:
            replica.end()


@pytest.fixture
def pair(served_pair: Pair) -> Iterator[Pair]:
    """Both serve before and after the test, whatever it does to them."""
    yield served_pair
    for replica in served_pair.replicas:
        if replica.process.poll() is not None:
            replica.launch()
    for replica in served_pair.replicas:
        replica.await_serving()
