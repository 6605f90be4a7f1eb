"""A real Prometheus with the chart's rules, for as long as a test looks at it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.observability.expressions import RULES
from tests.running_server import free_ports

SCRAPE_EVERY = "1s"
READY_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Series:
    """One answered series: its labels, and (time, value) of each of its points."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.points]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that scrapes. All times are seconds since 1970."""

    url: str

    def now(self, expression: str, at_s: float | None = None) -> list[Series]:
        """The expression's value; a scalar is one series without labels."""
        parameters = {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        data = self._get("query", parameters)
        if data["resultType"] == "scalar":
            return [Series({}, (_point(data["result"]),))]
        return [Series(found["metric"], (_point(found["value"]),)) for found in data["result"]]

    def over(self, expression: str, begin_s: float, end_s: float, step_s: float = 1.0) -> list[Series]:
        """Its values over a time."""
        parameters = {
            "query": expression, "start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}",
        }  # fmt: skip
        data = self._get("query_range", parameters)
        return [Series(found["metric"], tuple(map(_point, found["values"]))) for found in data["result"]]

    def label_values(self, selector: str, label: str) -> list[str]:
        """What a chooser on a dashboard would list."""
        return list(self._get(f"label/{label}/values", {"match[]": selector}))

    def rule_groups(self) -> list[dict[str, Any]]:
        """The rules, with how their last evaluation went."""
        return list(self._get("rules", {})["groups"])

    def await_scrapes(self, count: int, pod: str) -> None:
        """Until the pod was scraped so many more times and the rules were looked at since. TimeoutError after 30 s."""
        wanted = f'count_over_time(up{{pod="{pod}"}}[10m])'
        seen = self.now(wanted)
        target = (seen[0].values[0] if seen else 0) + count
        self.until(lambda: any(series.values[0] >= target for series in self.now(wanted)))

    def until(self, holds: Any, within_s: float = 30.0) -> None:
        """Until `holds()`. TimeoutError if it never does."""
        end_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > end_s:
                raise TimeoutError(f"not so within {within_s:g} s")
            time.sleep(_LOOK_EVERY_S)  # nothing to wait on: another process's samples

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]


@contextlib.contextmanager
def start_prometheus(binary: str, targets: Mapping[str, str], folder: Path) -> Iterator[Prometheus]:
    """Scrape `targets`, pod -> HOST:PORT, once a second, with the labels that a PodMonitor's targets have."""
    config = {
        "global": {
            "scrape_interval": SCRAPE_EVERY,
            "scrape_timeout": SCRAPE_EVERY,
            "evaluation_interval": SCRAPE_EVERY,
        },
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "soloist",
                "static_configs": [
                    {"targets": [address], "labels": {"namespace": "soloist", "pod": pod}}
                    for pod, address in targets.items()
                ],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    prometheus = Prometheus(f"http://{address}")
    try:
        prometheus.until(lambda: process.poll() is not None or _ready(prometheus.url), READY_WITHIN_S)
        assert process.poll() is None, log.read_text()
        yield prometheus
    finally:
        process.terminate()
        process.wait(20)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
