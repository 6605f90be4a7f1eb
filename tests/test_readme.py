"""README.md says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.fakes import FakeEngine, saying
from tests.readme_tables import README, with_tables
from tests.service.cli.threaded_server import ThreadedServer


def test_tables_are_those_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_tables(text), "run `python -m tests.readme_tables`"


def test_links_to_files_of_the_project_lead_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (README.parent / target).exists(), target


def test_the_python_client_of_the_readme_streams_an_answer() -> None:
    [program] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "localhost:50051" in program
    with ThreadedServer(FakeEngine(answer=saying("Paris."))) as server:
        program = program.replace("localhost:50051", server.target)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("Paris.", "")
