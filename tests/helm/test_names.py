"""Names that YAML reads as something else stay names, wherever they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.helm.examples import everything
from tests.helm.leaves import over
from tests.helm.rendering import NODES_CHART, Document, render
from tests.helm.validation import faults

# Numbers, dates, yes and no, and nothing, as YAML 1.1 has them; each is a right name of an object or label.
LETTERS = ("true", "null", "on", "y", "no", "e1")
NUMBERS = ("123", "1e5", "0x1f", "2001-01-01", "0777", "0b1", "1-1", "0.5")
NAMES = (*LETTERS, *NUMBERS)


def _values(name: str) -> dict[str, Any]:
    """This name for everything that has one."""
    named: dict[str, Any] = {
        "fullnameOverride": name if name.isalpha() else "soloist",
        "nameOverride": name if "." not in name else "",
        "image": {"pullSecrets": [name], "tag": name},
        "model": {"s3": {"credentialsSecret": name}, "cache": {"claimName": name}},
        "placement": {"runtimeClassName": name, "capacity": "spot", "pools": {"spot": name, "onDemand": name}},
        "priority": {"className": name, "create": True},
        "security": {"apiKeys": {"existingSecret": name, "fileKey": name, "clientKey": name}},
        "serviceAccount": {"name": name},
        "kubernetes": {"enabled": True},
        "podLabels": {name: name},
        "route": {"parentRefs": [{"name": name}]},
        "inferencePool": {"endpointPicker": {"name": name}},
        "gateway": {"tlsSecretName": name},
    }
    return over(everything(), named)


def _tls_and_volume(name: str) -> dict[str, Any]:
    """What cannot be together with the values above."""
    tls = {"secretName": name, "caKey": name, "clientCA": {"secretName": name, "key": name}, "clientSecretName": name}
    keda = {"mode": "keda", "prometheus": {"authentication": name, "scrapedElsewhere": True}}
    return {
        "model": {"source": "pvc", "pvc": {"claimName": name}},
        "security": {"tls": tls},
        "gateway": {"enabled": True, "insecure": True},
        "autoscaling": keda,
    }


def _misread(part: Any, place: str = "") -> Iterator[str]:
    """Where a date stands, which no schema of JSON can refuse, or a key is no text."""
    if isinstance(part, dict):
        yield from (f"{place}.{key!r}" for key in part if not isinstance(key, str))
        for key, value in part.items():
            yield from _misread(value, f"{place}.{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from _misread(value, f"{place}[{number}]")
    elif not isinstance(part, (str, int, float, type(None))):
        yield f"{place}: {part!r}"


def _wrong(documents: list[Document]) -> list[str]:
    return [*_misread(documents), *(faults(documents, ["1.34"]) if not [*_misread(documents)] else [])]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_yaml_takes_for_something_else_stays_one(name: str) -> None:
    assert isinstance(yaml.safe_load("0x1f"), int), "not the YAML that this is about"
    release = name if "." not in name else "soloist"
    for values in (_values(name), over({"fullnameOverride": "soloist"}, _tls_and_volume(name))):
        documents = render(values, release=release, namespace=release)
        assert _wrong(documents) == []
        kept = [d for d in documents if d["metadata"]["labels"]["app.kubernetes.io/instance"] == release]
        assert kept == documents


@pytest.mark.parametrize("name", [name for name in NAMES if "." not in name])
def test_names_of_nodes_stay_names(name: str) -> None:
    values = {
        "clusterName": name,
        "nodeRole": name,
        "nodeClass": {"name": name},
        "pools": {"spot": {"name": name}, "onDemand": {"name": f"{name}1"}},
        "labels": {"team": name},
        "tags": {name: name},
    }
    assert _wrong(render(values, chart=NODES_CHART, release=name, namespace=name)) == []
