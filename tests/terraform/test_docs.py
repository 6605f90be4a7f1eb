"""The Terraform pages say what the code says, and their commands can be typed as they stand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from terraform.bootstrap.__main__ import main
from tests.terraform.fake_tools import PLATFORM, FakeTools
from tests.terraform.tables import PAGES, ROOT, with_tables

GUIDE = ROOT / "docs" / "terraform.md"


def _commands() -> list[list[str]]:
    blocks = re.findall(r"(?s)```\n(.*?)```", GUIDE.read_text(encoding="utf-8"))
    return [shlex.split(line[2:]) for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text), "run `python -m tests.terraform.tables`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#\w+)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_terraform_commands_name_what_is_there() -> None:
    commands = [words for words in _commands() if words[0] == "terraform"]
    assert len(commands) == 6
    for _, place, verb, *rest in commands:
        root = ROOT / place.removeprefix("-chdir=")
        assert (root / "versions.tf").exists()
        if verb == "apply":
            (file,) = (word.removeprefix("-var-file=") for word in rest)
            assert (root / file).exists()
        if verb == "output":
            assert f'output "{rest[-1]}"' in (root / "outputs.tf").read_text(encoding="utf-8")


def test_bootstrap_commands_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_tool: Callable[[str], str]
) -> None:
    tools = FakeTools.make(tmp_path / "tools", "kubectl", "helm", "terraform", "aws")
    monkeypatch.setenv("PATH", tools.path)
    monkeypatch.chdir(ROOT)
    facts = {"cluster_name": "gpu", "region": "us-east-1", "karpenter_values": {}, "soloist_nodes_values": {}}
    for root, values in (
        ("cluster", facts),
        ("platform", {"soloist_values": {}, "service_account": PLATFORM["service_account"]}),
    ):
        tools.on(f"{root} output", output=json.dumps({name: {"value": value} for name, value in values.items()}))
    tools.on("describe-instances", output="[]")
    commands = [words for words in _commands() if words[0] == "python3"]
    assert [words[3] for words in commands] == ["up", "up", "down", "down"]
    for words in commands:
        assert words[1:3] == ["-m", "terraform.bootstrap"]
        assert main(words[3:]) == 0
        files = [Path(word) for word in words if "/" in word]
        assert files
        assert [file for file in files if not file.exists()] == []
