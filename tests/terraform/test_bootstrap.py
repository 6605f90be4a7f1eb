"""The way up and down, against stand-ins for the tools that would change a cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from terraform.bootstrap import down as way_down
from terraform.bootstrap.__main__ import main
from terraform.bootstrap.charts import RELEASES
from terraform.bootstrap.commands import Commands, TooLateError
from tests.helm.rendering import TOOLS as HELM_TOOLS
from tests.helm.rendering import tool
from tests.terraform.fake_tools import CLUSTER, PLATFORM, FakeTools, outputs


def _position(calls: list[list[str]], *words: str) -> int:
    """Where the first call with all these words is."""
    found = [number for number, call in enumerate(calls) if set(words) <= set(call)]
    assert found, f"no call with {words} among {calls}"
    return found[0]


def test_up_installs_everything_pinned_and_in_order(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up"]) == 0
    upgrades = [call for call in tools.calls("helm") if call[1] == "upgrade"]
    assert [call[2] for call in upgrades] == [
        "karpenter-crd", "karpenter", "nvidia-device-plugin", "kube-prometheus-stack", "keda", "soloist-nodes",
        "soloist",
    ]  # fmt: skip
    for call, release in zip(upgrades, RELEASES, strict=True):
        assert {"--install", "--wait", "--timeout", "--namespace"} <= set(call)
        pinned = Path(release.chart).is_dir() or call[call.index("--version") + 1].count(".") == 2
        assert pinned, f"{release.name} would be whatever version is newest that day"
    assert "aws eks update-kubeconfig --region us-west-2 --name gpu" in capsys.readouterr().out


def test_up_speaks_to_this_cluster_and_no_other(tools: FakeTools) -> None:
    assert main(["up"]) == 0
    (kubeconfig,) = tools.kubeconfigs("helm", "kubectl")
    written = tools.calls("aws")[0]
    assert written[written.index("--kubeconfig") + 1] == kubeconfig != "/another/cluster"
    assert not Path(kubeconfig).exists(), "the key to the cluster was left lying"


def test_up_gives_each_chart_what_terraform_knows(tools: FakeTools, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("replicas: 2\n")
    # The files are gone afterwards, so the stand-in for helm looks at them while it is called.
    keep = tmp_path / "kept"
    keep.mkdir()
    helm = tools.folder / "bin" / "helm"
    helm.write_text(helm.read_text().replace("said =", f"""
for word in words:
    if word.endswith(".json"):
        with open(word) as source, open(os.path.join({str(keep)!r}, os.path.basename(word)), "w") as copy:
            copy.write(source.read())
said ="""))  # fmt: skip
    assert main(["up", "--values", str(own)]) == 0
    assert {file.stem: json.loads(file.read_text()) for file in keep.iterdir()} == {
        "karpenter": CLUSTER["karpenter_values"],
        "soloist-nodes": CLUSTER["soloist_nodes_values"],
        "soloist": PLATFORM["soloist_values"],
    }
    (soloist,) = [call for call in tools.calls("helm") if call[1:3] == ["upgrade", "soloist"]]
    files = [soloist[number + 1] for number, word in enumerate(soloist) if word == "--values"]
    assert files[-1] == str(own), "what the user wants comes last"


def test_up_twice_is_the_same_as_once(tools: FakeTools) -> None:
    assert main(["up"]) == 0
    once = [call[:3] for call in tools.calls()]
    assert main(["up"]) == 0
    assert [call[:3] for call in tools.calls()] == once * 2


def test_up_asks_for_what_is_not_applied(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("platform output", output="{}")
    assert main(["up"]) == 1
    said = capsys.readouterr().err
    assert "soloist_values" in said
    assert "apply it first" in said
    assert [call[0] for call in tools.calls()] == ["terraform", "terraform"], "something was done before"


def test_up_stops_where_a_release_fails(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("upgrade keda", code=1, errors="Error: timed out waiting for the condition\n")
    assert main(["up"]) == 1
    assert "timed out waiting for the condition" in capsys.readouterr().err
    assert tools.calls()[-1][2] == "keda"


def test_a_tool_that_is_not_there_is_named(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tools.folder / "bin" / "aws").unlink()
    monkeypatch.setenv("PATH", str(tools.folder / "bin"))
    assert main(["up"]) == 1
    assert "aws is not installed" in capsys.readouterr().err


def test_a_dry_run_renders_our_charts_and_changes_nothing(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tools.folder / "bin" / "helm").unlink()
    tool("helm")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools.folder / "bin"), str(HELM_TOOLS), os.environ["PATH"]]))
    for example in ("dev", "production"):
        folder = Path(way_down.__file__).parents[1] / "examples" / example
        own = ["--values", str(folder / "soloist-values.yaml")]
        nodes = ["--nodes-values", str(folder / "soloist-nodes-values.yaml")]
        assert main(["up", "--dry-run", *own, *nodes]) == 0
        said = capsys.readouterr().out
        upgrades = [line.split()[4] for line in said.splitlines() if "would run helm upgrade" in line]
        assert upgrades == [release.name for release in RELEASES]
    assert [call[1:] for call in tools.calls()] == [[call[1], "output", "-json", "-no-color"] for call in tools.calls()]
    # And a value that a chart refuses is found without a cluster.
    tools.on("cluster output", output=outputs(CLUSTER | {"soloist_nodes_values": {"clusterNmae": "gpu"}}))
    assert main(["up", "--dry-run"]) == 1
    assert "clusterNmae" in capsys.readouterr().err


def test_inf_09_down_empties_the_cluster_before_it_destroys(tools: FakeTools) -> None:
    assert main(["down", "--yes"]) == 0
    calls = tools.calls()
    order = [
        _position(calls, "kubectl", "delete", "scaledobjects.keda.sh,horizontalpodautoscalers.autoscaling"),
        _position(calls, "kubectl", "scale", "--replicas=0"),
        _position(calls, "kubectl", "wait", "pods"),
        _position(calls, "helm", "uninstall", "soloist"),
        _position(calls, "kubectl", "delete", "services"),
        _position(calls, "kubectl", "delete", "nodepools.karpenter.sh"),
        _position(calls, "kubectl", "wait", "nodeclaims.karpenter.sh"),
        _position(calls, "kubectl", "delete", "ec2nodeclasses.karpenter.k8s.aws"),
        _position(calls, "aws", "describe-instances"),
        _position(calls, "terraform", "destroy"),
    ]
    assert order == sorted(order)
    assert [Path(call[1]).name for call in calls if "destroy" in call] == ["platform", "cluster"]
    assert not [call for call in calls if "karpenter" in call and "uninstall" in call], "Karpenter must end its nodes"
    waits = [call for call in tools.calls("kubectl") if call[1] in ("delete", "wait")]
    assert all(any(word.startswith("--timeout=") for word in call) for call in waits), "a wait without an end"


def test_inf_09_disks_that_stay_stop_the_way_down(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    """A claim is gone before its disk is, and the driver that deletes it goes with the cluster."""
    volumes = [
        {"metadata": {"name": name}, "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"namespace": of}}}
        for name, policy, of in (
            ("pv-1", "Delete", "monitoring"), ("pv-2", "Retain", "soloist"), ("pv-3", "Delete", "else"),
        )
    ]  # fmt: skip
    tools.on("get persistentvolumes", output=json.dumps({"items": volumes}))
    tools.on("wait persistentvolume/", code=1, errors="error: timed out waiting for the condition\n")
    assert main(["down", "--yes"]) == 1
    assert "timed out waiting for the condition" in capsys.readouterr().err
    (waited,) = [call for call in tools.calls("kubectl") if call[1] == "wait" and "persistentvolume/" in call[2]]
    assert [word for word in waited if "pv-" in word] == ["persistentvolume/pv-1"]
    assert not [call for call in tools.calls("terraform") if "destroy" in call]


def test_inf_09_nodes_that_stay_stop_the_way_down(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("wait nodeclaims", code=1, errors="error: timed out waiting for the condition on nodeclaims/gpu-spot-x\n")
    tools.on("kubectl get", output="nodeclaim.karpenter.sh/gpu-spot-x\nec2nodeclass.karpenter.k8s.aws/gpu\n")
    assert main(["down", "--yes"]) == 1
    said = capsys.readouterr().err
    assert "Still there: nodeclaim.karpenter.sh/gpu-spot-x, ec2nodeclass.karpenter.k8s.aws/gpu" in said
    assert "Nothing was destroyed" in said
    assert not [call for call in tools.calls("terraform") if "destroy" in call]


def test_inf_09_an_instance_without_a_claim_stops_it_too(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("describe-instances", output='["i-0b662ef9931388ba0"]')
    assert main(["down", "--yes"]) == 1
    assert "terminate-instances --region us-west-2 --instance-ids i-0b662ef9931388ba0" in capsys.readouterr().err
    (asked,) = [call for call in tools.calls("aws") if "describe-instances" in call]
    assert "Name=tag:kubernetes.io/cluster/gpu,Values=owned" in asked
    assert not [call for call in tools.calls("terraform") if "destroy" in call]


def test_inf_09_a_step_that_hangs_is_ended(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.on("wait nodeclaims", hang=True)
    monkeypatch.setattr(way_down, "NODES_S", 0)
    monkeypatch.setattr(way_down, "SLACK_S", 1.0)
    assert main(["down", "--yes"]) == 1
    assert "not done after 1 s" in capsys.readouterr().err
    assert not [call for call in tools.calls("terraform") if "destroy" in call]


def test_what_hangs_is_asked_before_it_is_killed(tools: FakeTools) -> None:
    """Terraform writes its state down when it is interrupted, and loses it when it is killed."""
    tools.on("terraform", hang=True)
    with pytest.raises(TooLateError, match=r"terraform apply: not done after 2.5 s, and ended"):
        Commands(environment={"PATH": tools.path}).change("terraform", "apply", timeout_s=2.5)
    assert (tools.folder / "hanging").exists()
    assert (tools.folder / "interrupted").exists()


def test_inf_10_down_works_where_the_cluster_is_gone(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("update-kubeconfig", code=254, errors="An error occurred (ResourceNotFoundException): No cluster found")
    assert main(["down", "--yes"]) == 0
    assert "the cluster is gone already" in capsys.readouterr().out
    assert tools.calls("kubectl") == []
    assert len([call for call in tools.calls("terraform") if "destroy" in call]) == 2


def test_inf_10_down_works_where_nothing_was_applied(tools: FakeTools) -> None:
    tools.on("cluster output", output="{}")
    assert main(["down", "--yes"]) == 0
    assert {call[0] for call in tools.calls()} == {"terraform"}


def test_inf_10_no_root_talks_to_the_cluster() -> None:
    """A provider for Kubernetes or helm would need the cluster that the same apply makes."""
    texts = [file.read_text() for file in Path(way_down.__file__).parents[1].rglob("*.tf")]
    assert texts
    assert not [text for text in texts if "hashicorp/kubernetes" in text or "hashicorp/helm" in text]


def test_down_where_nothing_was_installed_has_nothing_to_do(tools: FakeTools) -> None:
    tools.on("api-resources", output="")
    tools.on("kubectl wait", code=1, errors="error: no matching resources found\n")
    tools.on("kubectl scale", code=1, errors="error: no objects passed to scale\n")
    assert main(["down", "--yes"]) == 0
    assert not [call for call in tools.calls("kubectl") if any("karpenter.sh" in word for word in call[2:3])]


def test_down_keeps_models_unless_told(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.on("platform destroy", code=1, errors="Error: deleting S3 Bucket (models): BucketNotEmpty\n")
    assert main(["down", "--yes"]) == 1
    assert "run this again with --data" in capsys.readouterr().err
    assert [Path(call[1]).name for call in tools.calls("terraform") if "destroy" in call] == ["platform"]
    tools.on("platform destroy", output="Destroy complete!")
    assert main(["down", "--yes", "--data"]) == 0
    verbs = [(Path(call[1]).name, call[2]) for call in tools.calls("terraform") if call[2] != "output"]
    assert verbs[1:] == [("platform", "apply"), ("platform", "destroy"), ("cluster", "destroy")]
    (applied,) = [call for call in tools.calls("terraform") if "apply" in call]
    assert "-var=destroy_data=true" in applied


def test_down_wants_a_yes(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert tools.calls() == []


def test_down_in_a_dry_run_says_all_and_does_nothing(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dev.tfvars").touch()
    assert main(["down", "--dry-run", "--cluster-vars", "dev.tfvars"]) == 0
    said = capsys.readouterr().out
    assert "would run kubectl delete nodepools.karpenter.sh" in said
    assert said.count("destroy -auto-approve") == 2
    assert f"-var-file={Path('dev.tfvars').resolve()}" in said
    assert {tuple(call[:3]) for call in tools.calls() if call[0] != "terraform"} == {
        ("aws", "ec2", "describe-instances")
    }


def test_values_of_other_charts_are_yaml_and_few() -> None:
    for release in RELEASES:
        if release.values is not None:
            assert isinstance(yaml.safe_load(release.values.read_text()), dict)
    named = {release.name for release in RELEASES}
    assert {file.stem for file in (Path(way_down.__file__).parent / "values").iterdir()} <= named
