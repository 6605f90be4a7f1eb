"""Where Terraform takes the AWS provider from: a folder on this machine, where one holds it, else the registry.

`python -m tests.terraform.provider_mirror FILE` writes a CLI configuration that says so.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# What the tests were written against, within the `~> 5.95` that the roots ask for.
PROVIDER_VERSION = "5.100.0"
PROVIDER = Path("registry.terraform.io", "hashicorp", "aws", PROVIDER_VERSION)

# A mirror lies near one of these, so a search that goes no deeper costs milliseconds.
USUAL_ROOTS = (
    "~/.terraform.d",
    "/usr/local/share",
    "/usr/local/lib",
    "/usr/share/terraform",
    "/opt",
    "/srv",
    "/var/lib",
)
DEPTH = 4


@functools.cache
def provider_mirror() -> Path | None:
    """The folder that holds `registry.terraform.io/hashicorp/aws/5.100.0`, or None."""
    roots = [os.environ.get("TF_PLUGIN_CACHE_DIR", ""), *USUAL_ROOTS]
    folders = (folder for root in roots if root for folder in _folders(Path(root).expanduser(), DEPTH))
    return next((folder for folder in folders if (folder / PROVIDER).is_dir()), None)


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """`root` and the folders below it, not through links, level by level."""
    level = [root] if root.is_dir() else []
    for _ in range(depth):
        yield from level
        level = [child for folder in level for child in _children(folder)]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:  # not ours to read, or gone meanwhile
        return []


def cli_configuration() -> str:
    """The text of a Terraform CLI configuration file: offline where a mirror was found, silent about new versions."""
    mirror = provider_mirror()
    lines = ["disable_checkpoint = true"]
    if mirror is not None:
        lines += ["provider_installation {", "  filesystem_mirror {", f'    path = "{mirror}"', "  }", "}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(cli_configuration())
