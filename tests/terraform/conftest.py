"""Fixtures of the Terraform tests: the tool, and the cluster that it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.aws_emulator import AwsEmulator
from tests.terraform.applied_cluster import AppliedCluster, apply_cluster
from tests.terraform.fake_tools import CLUSTER, PLATFORM, FakeTools, outputs


@pytest.fixture(scope="session")
def terraform(require_tool: Callable[[str], str]) -> str:
    """The path of the `terraform` command."""
    return require_tool("terraform")


@pytest.fixture(scope="session")
def cluster(
    terraform: str, aws_emulator: AwsEmulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppliedCluster]:
    """terraform/cluster as it stands in an emulated AWS. The test that destroys it is the last of test_cluster.py."""
    applied = apply_cluster(terraform, aws_emulator, tmp_path_factory.mktemp("cluster"))
    yield applied
    applied.destroy()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    """Both roots applied, a cluster that has all kinds, and nothing that Karpenter left."""
    tools = FakeTools.make(tmp_path / "tools", "kubectl", "helm", "terraform", "aws")
    monkeypatch.setenv("PATH", tools.path)
    monkeypatch.setenv("KUBECONFIG", "/another/cluster")
    tools.on("cluster output", output=outputs(CLUSTER))
    tools.on("platform output", output=outputs(PLATFORM))
    tools.on("api-resources", output="some.kind\n")
    tools.on("describe-instances", output="[]")
    return tools
