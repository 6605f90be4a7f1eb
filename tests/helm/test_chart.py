"""The chart as a whole: lint, every example rendered and held against every version of Kubernetes, generated parts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from helm import generate, server_settings, values_comments
from tests.helm.cel_rules import broken_rules
from tests.helm.examples import everything
from tests.helm.rendering import CHART, RenderError, ci_files, helm, of_kind, parse, render, the
from tests.helm.validation import VERSIONS, core_kind, faults
from tests.project.tree import ROOT

# What each example makes, so that nothing is lost by a condition that is never met.
ALWAYS = {"ConfigMap", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount"}
RIGHTS = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
KINDS = {
    "cpu-demo": ALWAYS | {"Secret"},
    "one-gpu": ALWAYS | RIGHTS | {"Secret", "PodMonitor"},
    "spot-fleet": ALWAYS | RIGHTS | {"GRPCRoute", "PodMonitor", "PriorityClass", "PrometheusRule", "ScaledObject"},
    "night-off-dev": ALWAYS | RIGHTS | {"GRPCRoute", "InferencePool", "PodMonitor", "ScaledObject", "Secret"},
}


@pytest.mark.parametrize("values", [None, *ci_files()], ids=lambda path: path.stem if path else "defaults")
def test_helm_lint_is_strictly_clean(values: Path | None) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *(("--values", str(values)) if values else ()))


@pytest.mark.parametrize("values", ci_files(), ids=lambda path: path.stem)
def test_every_example_is_taken_by_every_version_of_kubernetes(values: Path) -> None:
    documents = render(files=[values])
    assert {document["kind"] for document in documents} == KINDS[values.stem.removesuffix("-values")]
    assert not faults(documents)


def test_the_defaults_are_taken_by_every_version_of_kubernetes() -> None:
    documents = render()
    assert {document["kind"] for document in documents} == ALWAYS | RIGHTS | {"Secret"}
    assert not faults(documents)


def test_everything_at_once_is_taken_too() -> None:
    documents = render(everything())
    assert not faults(documents)
    assert {"HorizontalPodAutoscaler", "InferencePool"} <= {document["kind"] for document in documents}


@pytest.mark.parametrize("values", [*ci_files(), None], ids=lambda path: path.stem if path else "everything")
def test_custom_resources_keep_the_rules_of_their_definitions(values: Path | None) -> None:
    documents = render(files=[values]) if values else render(everything())
    # Prometheus' definitions have none, and that of GRPCRoute is not here.
    custom = [d for d in documents if d["kind"] in ("ScaledObject", "InferencePool")]
    assert not broken_rules(custom)


def test_validation_is_that_of_kubernetes_validate() -> None:
    """Ours reads the schemas once. Here the package's own function sees the same, and so does each on a fault."""
    deployment = the(render(), "Deployment")
    assert kubernetes_validate.validate(deployment, "1.34", strict=True) == "1.34"
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, "1.34", strict=True)
    assert faults([wrong], ["1.34"]) == [
        "1.34 Deployment/soloist: $.spec: Additional properties are not allowed ('replica' was unexpected)"
    ]


@pytest.mark.parametrize(
    ("kind", "api_version", "wrong"),
    [
        ("Widget", "v1", "no such kind"),
        ("Widget", "example.com/v1", "no such kind"),
        ("ScaledObject", "keda.sh/v1alpha1", "'typo' was unexpected"),
        ("GRPCRoute", "gateway.networking.k8s.io/v1", "'typo' was unexpected"),
    ],
)
def test_an_unknown_kind_or_field_is_a_fault(kind: str, api_version: str, wrong: str) -> None:
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, "spec": {"typo": 1}}
    assert wrong in "\n".join(faults([document], ["1.34"]))


def test_schemas_of_each_version_are_there() -> None:
    assert all(core_kind(version, "apps/v1", "Deployment") for version in VERSIONS)


def test_generated_parts_are_fresh() -> None:
    assert not generate.stale(), "run `python -m helm.generate`"


def test_a_stale_part_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("Chart.yaml", *generate.GENERATED):
        (tmp_path / name).write_text((CHART / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "facts.yaml").write_text("stopSeconds: 1\n", encoding="utf-8")
    monkeypatch.setattr(generate, "CHART", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "helm/soloist/facts.yaml is not fresh; run: python -m helm.generate\n" in capsys.readouterr().err


def test_a_value_without_a_comment_is_refused() -> None:
    with pytest.raises(values_comments.UndocumentedError, match=r"values\.yaml:5: b\.d has no comment above it"):
        values_comments.read("# a map\nb:\n  # a value\n  c: 1\n  d: 1\n")


def test_the_schema_is_one_and_takes_the_defaults() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def test_every_setting_is_the_charts_or_the_users() -> None:
    for part in server_settings.PARTS:
        known = {setting.name for setting in part.settings}
        assert part.of_the_chart <= known, f"{part.path}: the program has no {part.of_the_chart - known}"


def test_chart_and_application_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (chart["appVersion"], chart["version"]) == (project["version"], project["version"])


def test_a_package_of_the_chart_renders_the_same(tmp_path: Path) -> None:
    values = {"security": {"apiKeys": {"existingSecret": "keys"}}, "monitoring": {"rules": {"enabled": True}}}
    helm("package", str(CHART), "--destination", str(tmp_path))
    [package] = tmp_path.iterdir()
    (tmp_path / "values.json").write_text(json.dumps(values), encoding="utf-8")
    text = helm("template", "soloist", str(package), "--namespace", "soloist", "-f", str(tmp_path / "values.json"))
    assert parse(text) == render(values)


def test_dashboards_are_the_files_one_map_each() -> None:
    documents = render({"monitoring": {"dashboards": {"enabled": True}}})
    maps = [d for d in of_kind(documents, "ConfigMap") if "grafana_dashboard" in d["metadata"]["labels"]]
    files = {file.name: file.read_text(encoding="utf-8") for file in (CHART / "dashboards").glob("*.json")}
    assert {name: text for map_ in maps for name, text in map_["data"].items()} == files
    assert len(maps) == len(files)
    # A ConfigMap holds 1 MiB at most.
    assert all(len(text.encode()) < 1 << 20 for text in files.values())


def test_another_kubernetes_than_supported_is_refused() -> None:
    with pytest.raises(RenderError, match="incompatible with Kubernetes"):
        helm("template", "soloist", str(CHART), "--kube-version", "1.31")
