"""An upgrade keeps the key that the installation made: helm looks it up in the cluster."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.helm.conftest import KEPT_KEY
from tests.helm.rendering import CHART, helm, parse, the


@pytest.mark.parametrize(("namespace", "kept"), [("kept", True), ("elsewhere", False)])
def test_an_upgrade_keeps_the_key_of_its_namespace(namespace: str, kept: bool, kubeconfig: Path) -> None:
    text = helm(
        *("template", "soloist", str(CHART), "--dry-run=server"),
        *("--namespace", namespace, "--kubeconfig", str(kubeconfig)),
    )
    made = the(parse(text), "Secret")["stringData"]
    assert (made["key"] == KEPT_KEY) is kept
    assert hashlib.sha256(made["key"].encode()).hexdigest() in made["keys.yaml"]
