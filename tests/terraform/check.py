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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.terraform.roots import TERRAFORM, TerraformFailedError, clean_environment, copy_root


def roots() -> list[str]:
    """Folders below terraform/ that are roots, relative to it."""
    return sorted(str(file.parent.relative_to(TERRAFORM)) for file in TERRAFORM.rglob("versions.tf"))


def _checked(executable: str, name: str) -> tuple[bool, str]:
    """Whether a root holds, and what Terraform said of it."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            root = copy_root(executable, name, Path(scratch))
            root.run("validate", "-no-color")
            return True, root.run("test", "-no-color", timeout_s=300).strip().splitlines()[-1]
        except TerraformFailedError as failure:
            return False, str(failure)


def main() -> int:
    executable = shutil.which("terraform")
    if executable is None:
        print("terraform/: not checked, terraform is not installed (https://developer.hashicorp.com/terraform/install)")
        return 1 if os.environ.get("CI") == "true" else 0
    formatting = [executable, "fmt", "-check", "-diff", "-recursive", str(TERRAFORM)]
    wrong = subprocess.run(formatting, env=clean_environment(), check=False).returncode != 0
    if wrong:
        print("run: terraform fmt -recursive terraform", file=sys.stderr)
    names = roots()
    # Side by side: each waits for its provider to read schemas, on one core.
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, (good, said) in zip(names, pool.map(lambda name: _checked(executable, name), names), strict=True):
            print(f"terraform/{name}: {said}", file=sys.stdout if good else sys.stderr)
            wrong = wrong or not good
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
