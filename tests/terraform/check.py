"""`terraform fmt`, `validate` and `test` for each root below terraform/: `python -m tests.terraform.check`.

Each root is copied first, so that nothing is written among the sources. `terraform test` needs no account: the tests of
a root mock its provider.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.terraform.roots import TERRAFORM, TerraformFailedError, clean_environment, copy_root


def roots() -> list[str]:
    """Folders below terraform/ that are roots, relative to it."""
    return sorted(str(file.parent.relative_to(TERRAFORM)) for file in TERRAFORM.rglob("versions.tf"))


def main() -> int:
    executable = shutil.which("terraform")
    if executable is None:
        print("terraform/: not checked, terraform is not installed (https://developer.hashicorp.com/terraform/install)")
        return 1 if os.environ.get("CI") == "true" else 0
    formatting = [executable, "fmt", "-check", "-diff", "-recursive", str(TERRAFORM)]
    wrong = subprocess.run(formatting, env=clean_environment(), check=False).returncode
    if wrong:
        print("run: terraform fmt -recursive terraform", file=sys.stderr)
    for name in roots():
        with tempfile.TemporaryDirectory() as scratch:
            try:
                root = copy_root(executable, name, Path(scratch))
                root.run("validate", "-no-color")
                print(f"terraform/{name}: {root.run('test', '-no-color', timeout_s=300).strip().splitlines()[-1]}")
            except TerraformFailedError as failure:
                print(f"terraform/{name}: {failure}", file=sys.stderr)
                wrong = 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
