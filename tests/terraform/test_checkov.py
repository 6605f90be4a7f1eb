"""What checkov has against the roots: nothing, but for exceptions that say why beside the resource."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.terraform.check import roots
from tests.terraform.roots import TERRAFORM

CHECKOV = Path(__file__).parents[2] / ".tools" / "checkov" / "bin" / "checkov"


@pytest.mark.timeout(180)
def test_checkov_finds_only_what_has_a_reason() -> None:
    if not CHECKOV.exists():
        absent("checkov is not installed: make checkov")
    command = [
        str(CHECKOV),
        "--directory",
        str(TERRAFORM),
        "--framework",
        "terraform",
        "--skip-download",
        "--output",
        "json",
    ]
    # It cannot read the tests of Terraform.
    command += ["--skip-path", "/tests/"]
    environment = os.environ | {"BC_SKIP_MAPPING": "TRUE", "LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    report = json.loads(done.stdout)
    results = report["results"]
    assert [(each["check_id"], each["resource"], each["file_path"]) for each in results["failed_checks"]] == []
    assert results["parsing_errors"] == []
    # Every root was looked at, and not an empty folder.
    files = {each["file_path"].split("/")[1] for each in results["passed_checks"]}
    assert files >= {name.split("/")[0] for name in roots()}
    reasons = [each["check_result"]["suppress_comment"].strip() for each in results["skipped_checks"]]
    assert [reason for reason in reasons if len(reason.split()) < 2] == []
