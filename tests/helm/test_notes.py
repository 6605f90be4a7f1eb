"""What helm prints after an installation: commands that can be copied, for the values that were given."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import _parser
from tests.helm.rendering import CHART, helm


@pytest.mark.parametrize(
    ("values", "said", "unsaid"),
    [
        ({}, ["get secret soloist-keys", "jsonpath='{.data.key}'", "soloist.dev/client"], ["insecure"]),
        ({"security": {"insecure": True}}, ["Everybody who reaches the port may use it"], ["get secret", "--api-key"]),
        (
            {"security": {"apiKeys": {"existingSecret": "mine", "clientKey": "web.txt"}}},
            ["get secret mine", r"jsonpath='{.data.web\.txt}'"],
            ["soloist-keys"],
        ),
        ({"security": {"tls": {"secretName": "tls"}}}, ["--tls-ca ca.pem"], []),
        ({"gateway": {"enabled": True}}, ["http://soloist-gateway.soloist.svc:80"], []),
        ({"gateway": {"enabled": True, "tlsSecretName": "a"}}, ["https://soloist-gateway.soloist.svc:80"], []),
        ({"networkPolicy": {"enabled": False}}, [], ["soloist.dev/client"]),
    ],
)  # fmt: skip
def test_notes_say_what_these_values_need(
    values: dict[str, Any], said: list[str], unsaid: list[str], tmp_path: Path, kubeconfig: Path
) -> None:
    (tmp_path / "values.json").write_text(json.dumps(values), encoding="utf-8")
    text = helm(
        *("install", "soloist", str(CHART), "--namespace", "soloist", "--values", str(tmp_path / "values.json")),
        *("--dry-run=client", "--disable-openapi-validation", "--output=json", "--kubeconfig", str(kubeconfig)),
    )
    notes = json.loads(text)["info"]["notes"]
    assert not [part for part in said if part not in notes]
    assert not [part for part in unsaid if part in notes]
    for line in notes.splitlines():
        if line.startswith("  "):
            words = shlex.split(line)
            assert words[0] in ("helm", "kubectl", "soloist")
            if words[0] == "soloist":
                parser, _ = _parser(words[1:])
                parser.parse_args(words[1:])
