"""An upgrade keeps the key that the installation made. Helm looks it up over HTTP, in an API server of a few lines."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.rendering import CHART, helm, parse, the

KEY = "soloist-made-when-it-was-installed-1234567890"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "soloist-keys", "namespace": "soloist"},
    "data": {"key": base64.b64encode(KEY.encode()).decode()},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}
        ],
    },
    "/api/v1/namespaces/soloist/secrets/soloist-keys": SECRET,
}
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


class _Api(BaseHTTPRequestHandler):
    """Answers what stands in ANSWERS."""

    def do_GET(self) -> None:
        found = ANSWERS.get(self.path.partition("?")[0])
        body = json.dumps(found or NOT_FOUND).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """The address of a running API server, as a file."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        yield path
        server.shutdown()


@pytest.mark.parametrize(("namespace", "kept"), [("soloist", True), ("elsewhere", False)])
def test_an_upgrade_keeps_the_key_of_its_namespace(namespace: str, kept: bool, kubeconfig: Path) -> None:
    text = helm(
        *("template", "soloist", str(CHART), "--dry-run=server"),
        *("--namespace", namespace, "--kubeconfig", str(kubeconfig)),
    )
    made = the(parse(text), "Secret")["stringData"]
    assert (made["key"] == KEY) is kept
    assert hashlib.sha256(made["key"].encode()).hexdigest() in made["keys.yaml"]
