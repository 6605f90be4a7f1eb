"""The bootstrap told to end, called wrongly, or told nonsense: it ends its children, and says what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from terraform.bootstrap.__main__ import main
from terraform.bootstrap.commands import Commands, TooLateError
from tests.project.tree import ROOT
from tests.terraform.fake_tools import CLUSTER, PLATFORM, FakeTools, outputs


@pytest.mark.parametrize(
    ("number", "words", "hanging"),
    [
        (signal.SIGINT, ["down", "--yes"], "destroy"),
        (signal.SIGTERM, ["down", "--yes"], "destroy"),
        (signal.SIGHUP, ["up"], "upgrade"),
    ],
)
def test_a_signal_ends_what_runs_first(
    tools: FakeTools, number: signal.Signals, words: list[str], hanging: str
) -> None:
    tools.on(hanging, hang=True)
    command = [sys.executable, "-m", "terraform.bootstrap", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        while not (tools.folder / "hanging").exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended by itself: {process.wait(0.02)}")
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert (tools.folder / "interrupted").exists(), "its child was left running"
    assert f"ended by {number.name}" in errors
    assert "Traceback" not in errors
    assert hanging in tools.calls()[-1], "more was done"


def test_what_is_ended_may_say_more_than_a_pipe_holds(tools: FakeTools) -> None:
    tools.on("terraform", hang=True)
    terraform = tools.folder / "bin" / "terraform"
    said = "print('state' * 50000, flush=True); open(os.path.join(folder, 'said'), 'w').close(); sys.exit(1)"
    terraform.write_text(terraform.read_text().replace("sys.exit(1)", said))
    with pytest.raises(TooLateError):
        Commands(environment={"PATH": tools.path}).change("terraform", "apply", timeout_s=1.5)
    assert (tools.folder / "said").exists(), "it was killed while it wrote its state down"


@pytest.mark.parametrize("way", [["up"], ["down", "--yes"]])
def test_a_tool_that_is_needed_late_is_missed_at_once(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    (tools.folder / "bin" / "helm").chmod(0o644)
    (tools.folder / "bin" / "kubectl").unlink()
    monkeypatch.setenv("PATH", str(tools.folder / "bin"))
    assert main(way) == 1
    said = capsys.readouterr().err
    assert "kubectl is not installed" in said
    assert "helm is not installed, or not on PATH, or may not be run" in said
    assert tools.calls() == []


@pytest.mark.parametrize(
    ("way", "flags"),
    [
        (["up"], ["--values", "--nodes-values", "--cluster", "--platform"]),
        (["down", "--yes"], ["--cluster-vars", "--platform-vars", "--cluster", "--platform"]),
    ],
)
def test_a_file_that_is_not_there_is_missed_at_once(
    tools: FakeTools, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: list[str], flags: list[str]
) -> None:
    given = [word for flag in flags for word in (flag, str(tmp_path / f"no{flag}"))]
    assert main([*way, *given]) == 1
    said = capsys.readouterr().err
    assert [flag for flag in flags if f"{flag} {tmp_path / f'no{flag}'}: no such f" not in said] == []
    assert tools.calls() == []


def test_values_that_our_charts_refuse_are_found_before_anything_is_installed(
    tools: FakeTools, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.on("helm template soloist ", code=1, errors="at '/replicas': got string, want integer\n")
    assert main(["up"]) == 1
    assert "/replicas" in capsys.readouterr().err
    assert not [call for call in tools.calls() if "upgrade" in call or "apply" in call]


NONSENSE: dict[str, str] = {
    "null": "null",
    "list": "[]",
    "no value": '{"a": 1}',
    "deep": "[" * 100_000,
    "no number": '{"a": {"value": NaN}}',
    "half a character": outputs(CLUSTER | {"soloist_nodes_values": {"a": "\ud800"}}),
    "NUL": outputs(CLUSTER | {"karpenter_values": {"a": ["b\0"]}}),
    "no name": outputs(CLUSTER | {"cluster_name": None}),
    "number": outputs(CLUSTER | {"cluster_name": 5}),
    "names": outputs(CLUSTER | {"cluster_name": ["gpu"]}),
    "empty": outputs(CLUSTER | {"cluster_name": ""}),
    "flag": outputs(CLUSTER | {"cluster_name": "--profile=evil"}),
    "line": outputs(CLUSTER | {"region": "us-west-2\n"}),
    "text": outputs(CLUSTER | {"soloist_nodes_values": "hello"}),
}


@pytest.mark.parametrize("way", [["up"], ["down", "--yes"]])
@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_what_a_root_cannot_mean_is_refused(
    tools: FakeTools, capsys: pytest.CaptureFixture[str], said: str, way: list[str]
) -> None:
    tools.on("cluster output", output=said)
    assert main(way) == 1
    assert "cluster" in capsys.readouterr().err
    assert {call[0] for call in tools.calls()} == {"terraform"}, "it was passed on"


@pytest.mark.parametrize("account", ["soloist", {}, {"namespace": "--all"}, {"namespace": None}])
def test_a_namespace_that_is_none_is_refused(
    tools: FakeTools, capsys: pytest.CaptureFixture[str], account: object
) -> None:
    tools.on("platform output", output=outputs(PLATFORM | {"service_account": account}))
    assert main(["down", "--yes"]) == 1
    assert "service_account" in capsys.readouterr().err
    assert tools.calls("kubectl") == []


def test_output_that_is_no_text_is_refused(tools: FakeTools, capsys: pytest.CaptureFixture[str]) -> None:
    (tools.folder / "bin" / "terraform").write_text("#!/bin/sh\nprintf '\\377\\376{}'\n")
    assert main(["up"]) == 1
    assert "no JSON" in capsys.readouterr().err


def test_a_tool_that_is_broken_is_named(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tools.folder / "bin"))
    (tools.folder / "bin" / "kubectl").write_bytes(b"\x7fELFbroken")
    assert main(["up"]) == 1
    assert "kubectl cannot be run" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["Unable to connect", "{}", "[1]"])
def test_instances_that_are_none_stop_the_way_down(
    tools: FakeTools, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    tools.on("describe-instances", output=said)
    assert main(["down", "--yes"]) == 1
    assert "describe-instances" in capsys.readouterr().err
    assert not [call for call in tools.calls("terraform") if "destroy" in call]
