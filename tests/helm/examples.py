"""Values to try things with: the defaults, each example that lies with the chart, and all that these leave off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.rendering import Document, ci_files, render


def each_example(test: Any) -> Any:
    """The test with the default values, and with those of each example."""
    ids = ["defaults", *(path.stem for path in ci_files())]
    return pytest.mark.parametrize("values", [None, *ci_files()], ids=ids)(test)


def documents_of(values: Path | None) -> list[Document]:
    """What the chart makes of an example, or of its defaults."""
    return render(files=[values] if values else [])


def everything() -> dict[str, object]:
    """Values that turn on what the examples leave off."""
    return {
        "variant": "cpu",
        "autoscaling": {"mode": "hpa"},
        "model": {
            "source": "s3",
            "s3": {
                "uri": "s3://models/m",
                "endpoint": "http://minio:9000",
                "region": "x",
                "credentialsSecret": "minio",
            },
            "cache": {"type": "pvc", "claimName": "cache"},
        },
        "image": {"pullSecrets": ["registry"]},
        "placement": {
            "onDemandFloor": 2,
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
        },
        "kubernetes": {"admissionPolicy": True},
        "settings": {"traces": "http://collector:4317"},
        "networkPolicy": {
            "gatewayClients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 80, "protocol": "TCP"}]}],
        },
        "monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboards": {"enabled": True}},
        "route": {"enabled": True, "parentRefs": [{"name": "a"}]},
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
        "gateway": {"enabled": True, "lendKey": True, "tlsSecretName": "https"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "service": {"listenHost": "[::]", "annotations": {"a": "b"}},
    }
