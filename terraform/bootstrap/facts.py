"""What Terraform knows of the cluster, and the way to talk to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terraform.bootstrap.commands import BootstrapError, Commands

# What texts that become words of commands look like. None begins with a dash, which a tool would take for a flag.
SHAPES = {"cluster_name": r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", "region": r"[a-z]{2}(-[a-z]+)+-[0-9]+"}
NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
OBJECTS = {"karpenter_values", "soloist_nodes_values", "soloist_values", "service_account"}


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
        BootstrapError: terraform cannot say, or says what cannot be.
    """
    said = parsed(commands.read("terraform", f"-chdir={folder}", "output", "-json", "-no-color") or "{}", folder)
    if not isinstance(said, dict) or not all(
        isinstance(output, dict) and "value" in output for output in said.values()
    ):
        raise BootstrapError(f"terraform output -json in {folder} printed no outputs: {_begin(said)}")
    found = {name: output["value"] for name, output in said.items()}
    for name, shape in SHAPES.items():
        if name in found and not (isinstance(found[name], str) and re.fullmatch(shape, found[name])):
            raise BootstrapError(f"{folder}: the output {name} is {_begin(found[name])}, and must be text like {shape}")
    for name in OBJECTS & set(found):
        if not isinstance(found[name], dict):
            raise BootstrapError(f"{folder}: the output {name} is {_begin(found[name])}, and must be an object")
    return found


def parsed(said: str, of: object) -> Any:
    """JSON that a tool printed.

    Raises:
        BootstrapError: it is none, or has texts that no other program takes.
    """
    try:
        value = json.loads(said, parse_constant=_refuse)
        if "\0" in "".join(_texts(value)).encode().decode():
            raise ValueError("a character NUL")
    except (ValueError, RecursionError) as error:
        raise BootstrapError(f"{of}: what was printed is no JSON of use ({error}): {said[:200]!a}") from None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _texts(value: Any) -> Iterator[str]:
    """Every text in it, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _begin(value: Any) -> str:
    return json.dumps(value)[:200]


def require(found: Mapping[str, Any], name: str, folder: Path) -> Any:
    """One output. Without it, a BootstrapError that says what to apply."""
    if name not in found:
        raise BootstrapError(f"{folder} has no output {name}: apply it first (terraform -chdir={folder} apply)")
    return found[name]


def pods_namespace(platform: Mapping[str, Any], folder: Path) -> str:
    """Where our pods and their service account are: whose pods may read models there, and in no other namespace."""
    name = require(platform, "service_account", folder).get("namespace")
    if not (isinstance(name, str) and re.fullmatch(NAMESPACE, name)):
        raise BootstrapError(f"{folder}: the output service_account has the namespace {_begin(name)}, which is no name")
    return name


def with_kubeconfig(commands: Commands, facts: Mapping[str, Any], folder: Path, scratch: Path) -> Commands:
    """Commands that talk to this cluster and to no other, whatever the user's own kubeconfig has as its current one."""
    name, region = require(facts, "cluster_name", folder), require(facts, "region", folder)
    file = scratch / "kubeconfig"
    commands.change(
        "aws", "eks", "update-kubeconfig", "--region", region, "--name", name, "--kubeconfig", file, timeout_s=60
    )
    return Commands(commands.dry_run, commands.environment | {"KUBECONFIG": str(file)})
