"""The pages for operators: tables as the chart renders them, and each command of the guide tried as far as it goes.

There is no cluster here. Commands that make manifests run for real, and what they make is held against the schemas.
The others run against a port that nobody listens on: they must fail for that reason, and not for how they are written.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from service.__main__ import _parser
from tests.helm.conftest import kubeconfig_of
from tests.helm.probe_tables import PAGE, relations, with_tables
from tests.helm.rendering import CHART, RenderError, helm, parse, tool
from tests.helm.validation import faults
from tests.project.tree import ROOT

GUIDE = ROOT / "docs" / "install.md"
# What the guide's files hold, in the shape of Terraform's outputs.
FILES = {
    "nodes.json": json.dumps({"clusterName": "cuda-graph-inference", "nodeRole": "cuda-graph-inference-nodes"}),
    "soloist.json": json.dumps(
        {
            "image": {"repository": "123456789012.dkr.ecr.eu-central-1.amazonaws.com/soloist"},
            "model": {"source": "s3", "s3": {"uri": "s3://models-1/models/qwen", "region": "eu-central-1"}},
            "serviceAccount": {"create": True, "name": "soloist"},
        }
    ),
    "keys.yaml": "keys: []\n",
    **dict.fromkeys(("key.txt", "tls.crt", "tls.key", "ca.crt"), "text\n"),
}
ELSEWHERE = {"docker", "kind", "aws"}  # not ours, and not here


@functools.cache
def commands() -> tuple[str, ...]:
    """Every command line of the guide."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return tuple(line for block in blocks for line in block.splitlines())


def of(program: str, *beginning: str) -> list[list[str]]:
    """The guide's commands of this program that begin so, as words; pipes and redirections are cut off."""
    found = []
    for line in commands():
        words = shlex.split(re.split(r" [|>] ", line)[0])
        if words[: 1 + len(beginning)] == [program, *beginning]:
            found.append(words[1:])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as the guide's reader has it: the charts, and the files that the commands before have made."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    return tmp_path


def test_each_command_is_of_a_program_that_is_tried_here_or_known() -> None:
    tried = {"helm", "kubectl", "soloist", "terraform"} | ELSEWHERE
    assert {shlex.split(line)[0] for line in commands()} == tried


@pytest.mark.parametrize("words", of("helm", "install"), ids=lambda words: words[1])
def test_what_the_guide_installs_is_taken_by_the_cluster(words: list[str], folder: Path, kubeconfig: Path) -> None:
    dry = ["--dry-run=client", "--disable-openapi-validation", "--output=json"]
    done = _run(["helm", *words, *dry], folder, kubeconfig)
    assert not done.returncode, done.stderr
    release = json.loads(done.stdout)
    documents = parse("\n---\n".join([release["manifest"], *(hook["manifest"] for hook in release.get("hooks", ()))]))
    assert documents
    assert not faults(documents)


@pytest.mark.parametrize("words", of("helm", "upgrade"), ids=lambda words: words[-1])
def test_what_the_guide_changes_is_taken_by_the_cluster(words: list[str], folder: Path) -> None:
    """Without a cluster there is nothing to reuse values of: those of the commands before are said again."""
    assert "--reuse-values" in words
    reused = ["--values", "soloist.json"]
    for before in of("helm", "upgrade"):
        reused += [word for word in before[3:] if word != "--reuse-values"]
        if before == words:
            break
    done = _run(["helm", "template", words[1], words[2], *reused], folder)
    assert not done.returncode, done.stderr
    assert not faults(parse(done.stdout))


def test_secrets_are_made_as_the_chart_mounts_them(folder: Path) -> None:
    made = {}
    for words in of("kubectl"):
        if "create" in words and "secret" in words:
            done = _run(["kubectl", *words, "--dry-run=client", "--output=yaml"], folder)
            assert not done.returncode, done.stderr
            [secret] = parse(done.stdout)
            secret["metadata"].pop("creationTimestamp", None)
            assert not faults([secret])
            made[secret["metadata"]["name"]] = {*secret["data"]}
    assert made == {"soloist-api-keys": {"keys.yaml", "key"}, "soloist-tls": {"tls.crt", "tls.key", "ca.crt"}}


@pytest.mark.parametrize(
    "words",
    [["kubectl", *words] for words in of("kubectl")]
    + [["helm", *words] for act in ("test", "rollback", "uninstall", "upgrade") for words in of("helm", act)],
    ids=lambda words: " ".join(words)[:60],
)
def test_commands_fail_for_want_of_a_cluster_and_of_nothing_else(words: list[str], folder: Path) -> None:
    if "create" in words and "secret" in words:
        words = [*words, "--validate=false"]
    done = _run(words, folder)
    assert done.returncode
    assert re.search(r"connection refused|cluster unreachable|connection to the server", done.stderr), done.stderr


def test_the_guides_client_is_ours(folder: Path) -> None:
    for words in of("soloist"):
        parser, _ = _parser(words)
        parser.parse_args(words)


def test_the_guides_values_are_outputs_of_terraform() -> None:
    for words in of("terraform"):
        root, output = words[0].removeprefix("-chdir="), words[-1]
        text = (ROOT / root / "outputs.tf").read_text(encoding="utf-8")
        assert f'output "{output}"' in text, f"{root} has no output {output}"


def test_the_guide_builds_the_image_that_the_chart_asks_for() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "ARG VARIANT=cpu" in dockerfile
    tags = {words[words.index("--tag") + 1] for words in of("docker", "build")}
    asked = {
        re.findall(r'image: "(.+)"', helm("template", "soloist", str(CHART), *more))[0].rpartition("/")[2]
        for more in ((), ("--values", str(CHART / "ci" / "cpu-demo-values.yaml")))
    }
    assert {tag.rpartition("/")[2] for tag in tags} == asked


def test_what_the_guide_says_of_refusals_is_what_helm_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for values, sentence in (
        ("replicas=-1", "values don't meet the specifications"),
        ("settings.grace_s=100", "A pod on a spot node has 110 s to leave"),
    ):
        assert sentence in text
        with pytest.raises(RenderError, match=re.escape(sentence)):
            helm("template", "soloist", str(CHART), "--set", values)


def test_values_that_the_pages_name_are_values_of_the_chart() -> None:
    from tests.helm.leaves import leaves, maps

    known = {".".join(leaf.path) for leaf in leaves()} | {".".join(path) for path in maps()}
    sections = {name.split(".")[0] for name in known if name}
    named = set()
    for page in (GUIDE, PAGE):
        for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)(?:=[^`]*)?`", page.read_text(encoding="utf-8")):
            if name.split(".")[0] in sections and not name.endswith((".yaml", ".txt", ".json", ".dev")):
                named.add(name)
    assert len(named) > 15
    assert named <= known, named - known


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (GUIDE, PAGE):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tables_of_probes_are_what_the_chart_renders() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run `python -m tests.helm.probe_tables`"


@pytest.mark.parametrize("relation", relations() if (CHART / "Chart.yaml").exists() else [], ids=lambda r: str(r[0]))
def test_promise_12_probes_graces_and_timeouts_add_up(relation: tuple[str, float, str, float]) -> None:
    this, value_s, that, least_s = relation
    assert value_s >= least_s, f"{this}: {value_s} s, and {that}: {least_s} s"


def _run(words: list[str], folder: Path, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command, with this cluster or with one that does not listen."""
    config = kubeconfig or kubeconfig_of("http://127.0.0.1:1", folder / "nowhere.json")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(config)}
    command = [tool(words[0]), *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
