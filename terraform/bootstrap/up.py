"""The way up: everything in `charts.RELEASES`, installed or upgraded in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terraform.bootstrap.charts import CHARTS, HERE, RELEASES, Release
from terraform.bootstrap.commands import Commands
from terraform.bootstrap.facts import Roots, outputs, pods_namespace, require, with_kubeconfig


def up(commands: Commands, roots: Roots, own_values: Mapping[str, Sequence[Path]], scratch: Path) -> None:
    """Install or upgrade every release, with Terraform's outputs as values, and after them `own_values` by release.

    Our own charts are rendered with these values first, also in a dry run, so that a wrong one is found.

    Raises:
        BootstrapError: a root is not applied, a value is refused, or a release does not become ready in time.
    """
    facts = {"cluster": outputs(commands, roots.cluster), "platform": outputs(commands, roots.platform)}
    values = {release.name: _values(release, facts, roots, own_values, scratch) for release in RELEASES}
    namespace = pods_namespace(facts["platform"], roots.platform)
    commands = with_kubeconfig(commands, facts["cluster"], roots.cluster, scratch)
    # Before anything is done: our own charts say what they refuse without a cluster.
    for release in RELEASES:
        if release.chart.startswith(str(CHARTS)):
            where = ["--namespace", release.namespace or namespace]
            commands.read("helm", "template", release.name, release.chart, *where, *values[release.name])
    commands.change("kubectl", "apply", "--filename", _namespace_file(namespace, scratch), timeout_s=60)
    for release in RELEASES:
        where = ["--namespace", release.namespace or namespace]
        commands.change("helm", "upgrade", release.name, *_source(release), "--install", *where,
                        "--create-namespace", *values[release.name], "--wait", "--timeout", f"{release.wait_s}s",
                        timeout_s=release.wait_s + 60)  # fmt: skip
    name, region = facts["cluster"]["cluster_name"], facts["cluster"]["region"]
    print(f"\nTo look around: aws eks update-kubeconfig --region {region} --name {name}")


def _values(
    release: Release,
    facts: Mapping[str, Mapping[str, Any]],
    roots: Roots,
    own_values: Mapping[str, Sequence[Path]],
    scratch: Path,
) -> list[str]:
    """Flags for the files of a release's values: our choices, what Terraform knows, what the user wants."""
    files = [release.values] if release.values else []
    if release.facts:
        root, output = release.facts
        file = scratch / f"{release.name}.json"
        file.write_text(json.dumps(require(facts[root], output, roots.folder(root))), encoding="utf-8")
        files.append(file)
    files += own_values.get(release.name, ())
    return [word for file in files for word in ("--values", str(file))]


def _source(release: Release) -> list[str]:
    repository = ["--repo", release.repository] if release.repository else []
    version = ["--version", release.version] if release.version else []
    return [release.chart, *repository, *version]


def _namespace_file(name: str, scratch: Path) -> Path:
    """The manifest of namespace.json under this name. Its labels make the cluster refuse a less than restricted pod."""
    manifest = json.loads((HERE / "namespace.json").read_text(encoding="utf-8"))
    manifest["metadata"]["name"] = name
    file = scratch / "namespace.json"
    file.write_text(json.dumps(manifest), encoding="utf-8")
    return file
