"""Two replicas behind real proxies, one killed hard or drained under load: readers get every word once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proxies.conftest import Pair
from tests.proxies.load import Load, Seen
from tests.proxies.proxy import CONFIGS, proxy
from tests.proxies.replicas import Replica

IN_FULL = [pytest.mark.slow, pytest.mark.timeout(600)]
TURNS_AND_KILLS = [(24, 1), pytest.param(200, 100, marks=IN_FULL)]
DRAINS = [1, pytest.param(8, marks=IN_FULL)]  # of one replica, then the other, and so on
PAUSE_S = (0.5, 2.0)  # between two kills, from when both serve again
NOTICED_S = 1.0  # a proxy asks each replica's health every 0.3 s


@dataclass(frozen=True, slots=True)
class Way:
    """How readers reach the replicas."""

    name: str
    target: str | list[str]


@pytest.fixture(params=CONFIGS)
def way(
    request: pytest.FixtureRequest, pair: Pair, require_tool: Callable[[str], str], tmp_path: Path
) -> Iterator[Way]:
    """The address of a proxy of both replicas."""
    with proxy(request.param, require_tool, pair.replicas, tmp_path) as target:
        yield Way(request.param, target)


class Trouble:
    """What befalls replicas, one after the other, until the load is over."""

    def __init__(self, seed: int, pause_s: tuple[float, float], most: int) -> None:
        self.count = 0
        self._most = most
        self._chance = random.Random(seed)
        self._pause_s = pause_s
        self._over = asyncio.Event()

    async def until_over(
        self, load: Load, turns: int, befalls: Callable[[Replica], None], victims: list[Replica]
    ) -> None:
        """The load of so many turns, during which `befalls` comes to one of the victims at random, at random times."""

        async def go_on() -> None:
            while self.count < self._most and not await self._is_over_after(self._chance.uniform(*self._pause_s)):
                await asyncio.to_thread(befalls, self._chance.choice(victims))
                self.count += 1

        troubling = asyncio.create_task(go_on())
        await load.run(turns)
        self._over.set()
        await troubling

    async def _is_over_after(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._over.wait()
        except TimeoutError:
            return False


def kill_and_start(replica: Replica) -> None:
    """The way of a machine that is taken away, and of the one that comes in its place."""
    replica.kill()
    replica.start()


def show(way: str, seen: Seen, what: str, count: int) -> None:
    print(f"{way}: {what} {count} times; {seen}")


async def killed(way: Way, pair: Pair, turns: int, most_kills: int) -> None:
    load = Load(way.target, pair.right)
    trouble = Trouble(turns, PAUSE_S, most_kills)
    await trouble.until_over(load, turns, kill_and_start, pair.replicas)
    show(way.name, load.seen, "killed", trouble.count)
    assert trouble.count >= 1
    assert load.seen.turns == turns
    assert not load.seen.wrong
    assert len(load.seen.failed) <= turns // 200


@pytest.mark.parametrize(("turns", "most_kills"), TURNS_AND_KILLS)
async def test_promise_10_a_replica_killed_hard_behind_a_proxy_costs_no_word(
    way: Way, pair: Pair, turns: int, most_kills: int
) -> None:
    await killed(way, pair, turns, most_kills)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_promise_10_a_replica_killed_hard_costs_a_client_of_both_no_word(pair: Pair) -> None:
    await killed(Way("both addresses", pair.targets), pair, turns=200, most_kills=100)


@pytest.mark.parametrize("drains", DRAINS)
async def test_promise_13_a_rolling_restart_behind_a_proxy_is_seen_by_nobody(way: Way, pair: Pair, drains: int) -> None:
    load = Load(way.target, pair.right)
    asking = asyncio.create_task(load.run(100_000))
    for number in range(drains):
        replica = pair.replicas[number % 2]
        assert await asyncio.to_thread(replica.drain) == 0
        if drains > 1:
            await asyncio.to_thread(replica.start)
            await asyncio.sleep(NOTICED_S)  # as a roll-out waits after a new pod is ready
    load.stop()
    await asking
    show(way.name, load.seen, "drained", drains)
    assert load.seen.turns >= 4
    assert not load.seen.failed
    assert not load.seen.wrong
