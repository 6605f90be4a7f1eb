"""The real kubectl and helm know every word that the bootstrap says to them, as far as one sees without a cluster."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from terraform.bootstrap.__main__ import TERRAFORM, main
from terraform.bootstrap.commands import Commands
from terraform.bootstrap.facts import Roots
from terraform.bootstrap.up import up
from tests.helm.rendering import TOOLS, tool
from tests.terraform.fake_tools import PLATFORM, FakeTools

# Nobody listens on port 1.
NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "nobody", "user": {}}],
    "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
    "current-context": "nowhere",
}


def test_the_real_tools_get_as_far_as_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool("helm")
    tools = FakeTools.make(tmp_path / "tools", "terraform", "aws")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools.folder / "bin"), str(TOOLS), os.environ["PATH"]]))
    facts = {"cluster_name": "gpu", "region": "us-east-1", "karpenter_values": {}, "soloist_nodes_values": {}}
    platform = {"soloist_values": {"image": {"repository": "soloist"}}, "service_account": PLATFORM["service_account"]}
    for root, values in (("cluster", facts), ("platform", platform)):
        tools.on(f"{root} output", output=json.dumps({name: {"value": value} for name, value in values.items()}))
    tools.on("describe-instances", output="[]")
    assert main(["down", "--dry-run"]) == 0
    # Not by its command line, which takes its files away at the end: kubectl wants to read one.
    up(Commands(dry_run=True), Roots(TERRAFORM / "cluster", TERRAFORM / "platform"), {}, tmp_path)
    said = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("would run ")]
    # Without a cluster `helm upgrade` would fetch its chart first, from the network.
    asked = [words[2:] for words in said if words[2] == "kubectl" or words[2:4] == ["helm", "uninstall"]]
    assert len(asked) == 13
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(NOWHERE))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for words in asked:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, words
        assert "refused" in done.stderr, f"{shlex.join(words)}: {done.stderr}"
