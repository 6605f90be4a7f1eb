"""Terraform on a copy of one of our roots: init, validate, test, apply, destroy, and what it says in JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.aws_emulator import AwsAccount
from tests.terraform.provider_mirror import cli_configuration

TERRAFORM = Path(__file__).parents[2] / "terraform"

# Calls to the emulator cost it little, and a resource that waits for another holds no place for long.
PARALLELISM = 32

# Laid over the root's own provider block, whose default_tags stay. Endpoint and keys come from the environment.
EMULATED_PROVIDER = """\
provider "aws" {
  max_retries       = 2 # one call that the emulator lacks would hang for minutes
  s3_use_path_style = true
}
"""


class TerraformFailedError(AssertionError):
    """A command ended with another exit code than 0; the text holds all that it printed."""


@dataclass(frozen=True, slots=True)
class Root:
    """A copy of a root, with a Terraform to run in it."""

    executable: str
    folder: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """What `terraform ARGUMENTS` printed on standard output. TerraformFailedError where it failed or was late."""
        command = [self.executable, *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=dict(self.environment), text=True, timeout=timeout_s,
                stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise TerraformFailedError(f"{' '.join(command)}: not done after {timeout_s} s\n{late.stdout!r}") from late
        if done.returncode != 0:
            raise TerraformFailedError(
                f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def init(self) -> None:
        self.run("init", "-backend=false", "-input=false", "-no-color")

    def apply(self, **variables: Any) -> str:
        """What was printed. In one go: no -target. The variables stay for `destroy`."""
        (self.folder / "test.auto.tfvars.json").write_text(json.dumps(variables))
        return self.run("apply", "-auto-approve", *self._quietly(), timeout_s=300)

    def destroy(self) -> str:
        """What was printed."""
        return self.run("destroy", "-auto-approve", *self._quietly(), timeout_s=300)

    def outputs(self) -> dict[str, Any]:
        """Each output's value after an apply."""
        return {name: output["value"] for name, output in json.loads(self.run("output", "-json")).items()}

    def state(self) -> list[str]:
        """Addresses of all that the state holds."""
        return self.run("state", "list").split()

    @staticmethod
    def _quietly() -> list[str]:
        return ["-input=false", "-no-color", "-compact-warnings", f"-parallelism={PARALLELISM}"]


def copy_root(executable: str, name: str, folder: Path, account: AwsAccount | None = None) -> Root:
    """`terraform/NAME` in a copy of terraform/ below `folder`, initialised; with an account, on the emulator."""
    whole = folder / "terraform"
    # The whole, since a root may name its neighbours. Not what a user's own runs left there.
    shutil.copytree(TERRAFORM, whole, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "terraform.tfvars"))
    root = whole / name
    configuration = folder / "cli.tfrc"
    configuration.write_text(cli_configuration())
    environment = clean_environment() | {"TF_CLI_CONFIG_FILE": str(configuration), "TF_IN_AUTOMATION": "1"}
    if account is not None:
        environment |= account.environment
        (root / "emulator_override.tf").write_text(EMULATED_PROVIDER)
    copied = Root(executable, root, environment)
    copied.init()
    return copied


def clean_environment() -> dict[str, str]:
    """This process's, without what it says to Terraform and AWS: a profile, an account, a file that does not exist."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "AWS_"))}
