"""What Terraform knows of the cluster, and the way to talk to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terraform.bootstrap.commands import BootstrapError, Commands


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of the two roots, and the files of variables that each was applied with."""

    cluster: Path
    platform: Path
    cluster_vars: tuple[Path, ...] = ()
    platform_vars: tuple[Path, ...] = ()

    def folder(self, name: str) -> Path:
        return {"cluster": self.cluster, "platform": self.platform}[name]


def outputs(commands: Commands, folder: Path) -> dict[str, Any]:
    """Values of a root's outputs; empty where nothing of it is applied.

    Raises:
        BootstrapError: terraform cannot say.
    """
    said = commands.read("terraform", f"-chdir={folder}", "output", "-json", "-no-color")
    try:
        return {name: output["value"] for name, output in json.loads(said or "{}").items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BootstrapError(f"terraform output -json in {folder} printed no outputs: {said[:200]!r}") from None


def require(found: Mapping[str, Any], name: str, folder: Path) -> Any:
    """One output. Without it, a BootstrapError that says what to apply."""
    if name not in found:
        raise BootstrapError(f"{folder} has no output {name}: apply it first (terraform -chdir={folder} apply)")
    return found[name]


def pods_namespace(platform: Mapping[str, Any], folder: Path) -> str:
    """Where our pods and their service account are: whose pods may read models there, and in no other namespace."""
    return str(require(platform, "service_account", folder)["namespace"])


def with_kubeconfig(commands: Commands, facts: Mapping[str, Any], folder: Path, scratch: Path) -> Commands:
    """Commands that talk to this cluster and to no other, whatever the user's own kubeconfig has as its current one."""
    name, region = require(facts, "cluster_name", folder), require(facts, "region", folder)
    file = scratch / "kubeconfig"
    commands.change(
        "aws", "eks", "update-kubeconfig", "--region", region, "--name", name, "--kubeconfig", file, timeout_s=60
    )
    return Commands(commands.dry_run, commands.environment | {"KUBECONFIG": str(file)})
