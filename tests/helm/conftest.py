"""An API server of a few lines, for what helm asks even when it changes nothing."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

KEPT_KEY: Final = "soloist-made-when-it-was-installed-1234567890"
# What the charts make, by the place of its API: kind, plural, whether it lies in a namespace.
KINDS: Final[dict[str, list[tuple[str, str, bool]]]] = {
    "v1": [
        ("ConfigMap", "configmaps", True),
        ("Pod", "pods", True),
        ("Secret", "secrets", True),
        ("Service", "services", True),
        ("ServiceAccount", "serviceaccounts", True),
    ],
    "apps/v1": [("Deployment", "deployments", True)],
    "networking.k8s.io/v1": [("NetworkPolicy", "networkpolicies", True)],
    "policy/v1": [("PodDisruptionBudget", "poddisruptionbudgets", True)],
    "rbac.authorization.k8s.io/v1": [
        ("Role", "roles", True),
        ("RoleBinding", "rolebindings", True),
        ("ClusterRole", "clusterroles", False),
        ("ClusterRoleBinding", "clusterrolebindings", False),
    ],
    "karpenter.sh/v1": [("NodePool", "nodepools", False)],
    "karpenter.k8s.aws/v1": [("EC2NodeClass", "ec2nodeclasses", False)],
}


def _resources(version: str) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "groupVersion": version,
        "resources": [
            {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get"]}
            for kind, plural, namespaced in KINDS[version]
        ],
    }


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _deployment(namespace: str, annotations: dict[str, str], replicas: int) -> dict[str, Any]:
    metadata = {"name": "soloist", "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}}


DEPLOYMENTS: Final = {
    "kept": _deployment("kept", {"soloist.dev/replicas-by": "chart"}, 3),
    "scaled": _deployment("scaled", {}, 4),
}
# A Secret, as an installation left it in the namespace `kept`, two Deployments, and no release.
ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(version.partition("/")[0]) for version in KINDS if "/" in version],
    },
    **{f"/{'apis' if '/' in version else 'api'}/{version}": _resources(version) for version in KINDS},
    "/api/v1/namespaces/kept/secrets/soloist-keys": {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "soloist-keys", "namespace": "kept"},
        "data": {"key": base64.b64encode(KEPT_KEY.encode()).decode()},
    },
    **{
        f"/apis/apps/v1/namespaces/{namespace}/deployments/soloist": deployment
        for namespace, deployment in DEPLOYMENTS.items()
    },
}
NOTHING: Final = {"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}
NOT_FOUND: Final = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


class _Api(BaseHTTPRequestHandler):
    """Answers what stands in ANSWERS, and lists of Secrets as empty."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = ANSWERS.get(path) or (NOTHING if path.endswith("/secrets") else None)
        body = json.dumps(found or NOT_FOUND).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def kubeconfig_of(address: str, path: Path) -> Path:
    """A kubeconfig with this API server, written to `path`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": address}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The address of a running API server, as a file."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield kubeconfig_of(address, tmp_path_factory.mktemp("cluster") / "kubeconfig.json")
        server.shutdown()
