"""What the bootstrap installs fits what Terraform made and what the charts need."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from terraform.bootstrap import down as way_down
from terraform.bootstrap.__main__ import main
from terraform.bootstrap.charts import RELEASES
from tests.helm.rendering import of_kind, render
from tests.terraform.fake_tools import PLATFORM, FakeTools, outputs
from tests.terraform.roots import TERRAFORM


@pytest.mark.parametrize("example", [None, "dev", "production"])
def test_helm_waits_longer_than_the_chart_gives_its_pods(example: str | None) -> None:
    files = (TERRAFORM / "examples" / example / "soloist-values.yaml",) if example else ()
    (wait_s,) = [release.wait_s for release in RELEASES if release.name == "soloist"]
    deployments = of_kind(render(PLATFORM["soloist_values"], files=files), "Deployment")
    assert [each for each in deployments if each["spec"]["progressDeadlineSeconds"] >= wait_s] == []


@pytest.fixture
def elsewhere(tools: FakeTools) -> FakeTools:
    """As `terraform apply -var namespace=chat` leaves it."""
    tools.on("platform output", output=outputs(PLATFORM | {"service_account": {"namespace": "chat", "name": "reader"}}))
    return tools


def _namespaces(calls: list[list[str]]) -> set[str]:
    return {call[call.index("--namespace") + 1] for call in calls if "--namespace" in call}


def test_up_installs_where_pods_may_read_models(elsewhere: FakeTools, tmp_path: Path) -> None:
    # The manifest is gone afterwards, so the stand-in for kubectl keeps it.
    kept = tmp_path / "kept.json"
    kubectl = elsewhere.folder / "bin" / "kubectl"
    kubectl.write_text(kubectl.read_text().replace("said =", f"""
with open(words[words.index("--filename") + 1]) as source, open({str(kept)!r}, "w") as copy:
    copy.write(source.read())
said ="""))  # fmt: skip
    assert main(["up"]) == 0
    manifest = json.loads(kept.read_text())
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Namespace", "chat")
    assert manifest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    ours = [call for call in elsewhere.calls("helm") if call[2] in ("soloist", "soloist-nodes")]
    assert len(ours) == 4
    assert _namespaces(ours) == {"chat"}


def test_up_gives_prometheus_what_the_user_wants_after_our_own(tools: FakeTools) -> None:
    own = str(TERRAFORM / "examples" / "production" / "kube-prometheus-stack-values.yaml")
    assert main(["up", "--monitoring-values", own, "--monitoring-values", "receivers.yaml"]) == 0
    (upgrade,) = [call for call in tools.calls("helm") if call[1:3] == ["upgrade", "kube-prometheus-stack"]]
    files = [upgrade[number + 1] for number, word in enumerate(upgrade) if word == "--values"]
    assert files == [str(TERRAFORM / "bootstrap" / "values" / "kube-prometheus-stack.yaml"), own, "receivers.yaml"]


def test_down_empties_that_namespace(elsewhere: FakeTools) -> None:
    assert main(["down", "--yes"]) == 0
    assert _namespaces(elsewhere.calls("kubectl")) == {"chat", "monitoring"}
    assert _namespaces([call for call in elsewhere.calls("helm") if call[2].startswith("soloist")]) == {"chat"}


def test_down_says_where_it_looks_once_the_platform_is_gone(
    tools: FakeTools, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.on("platform output", output="{}")
    assert main(["down", "--yes"]) == 0
    assert "is not applied: looking for pods in its default namespace, soloist" in capsys.readouterr().out
    variables = (TERRAFORM / "platform" / "variables.tf").read_text(encoding="utf-8")
    (default,) = re.findall(r'(?s)variable "namespace" \{.*?default     = "(.*?)"', variables)
    assert default == way_down.DEFAULT_NAMESPACE
    assert _namespaces(tools.calls("kubectl")) == {default, "monitoring"}
