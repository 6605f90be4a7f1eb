"""The level `restricted` of the Pod Security Standards, as a function over a pod's spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helm.rendering import Document

# An OCI image as a volume is not among them.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(pod: Document) -> list[str]:
    """What the admission of a namespace with `pod-security.kubernetes.io/enforce: restricted` would say."""
    found = [f"{key} must not be true" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    for volume in pod.get("volumes", ()):
        found += [f"volume {volume['name']}: type {kind}" for kind in {*volume} - {"name"} - VOLUMES]
    context = pod.get("securityContext", {})
    found += [f"securityContext: {key}" for key in ("sysctls", "windowsOptions", "seLinuxOptions") if key in context]
    for container in _containers(pod):
        found += [f"container {container['name']}: {what}" for what in _of_container(container, context)]
    return found


def _containers(pod: Document) -> Iterator[Document]:
    for key in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(key, ())


def _of_container(container: Document, pod_context: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})

    def effective(key: str) -> Any:
        return own.get(key, pod_context.get(key))

    capabilities = own.get("capabilities", {})
    probes = [container.get(kind, {}) for kind in ("livenessProbe", "readinessProbe", "startupProbe")]
    handlers = [probe.get(handler, {}) for probe in probes for handler in ("httpGet", "tcpSocket")]
    rules = {
        "privileged": not own.get("privileged"),
        "allowPrivilegeEscalation must be false": own.get("allowPrivilegeEscalation") is False,
        "capabilities must drop ALL": "ALL" in capabilities.get("drop", ()),
        "capabilities must not be added": {*capabilities.get("add", ())} <= {"NET_BIND_SERVICE"},
        "runAsNonRoot must be true": effective("runAsNonRoot") is True,
        "runAsUser must not be 0": effective("runAsUser") != 0,
        "seccompProfile must be RuntimeDefault or Localhost": (
            (effective("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost")
        ),
        "procMount must be Default": own.get("procMount", "Default") == "Default",
        "no port of the host": not any(port.get("hostPort") for port in container.get("ports", ())),
        "probes must not name a host": not any(handler.get("host") for handler in handlers),
    }
    yield from (rule for rule, holds in rules.items() if not holds)
