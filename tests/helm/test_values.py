"""Each documented value changes what is rendered, and each wrong one is refused with a line that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from helm.values_comments import Value
from tests.helm.leaves import another, errors, leaves, maps, of, over, wrong
from tests.helm.rendering import CHART, Document, RenderError, render, settings_file

# A key of one's own, since the one that the chart makes is another one each time.
BASE: dict[str, Any] = {"security": {"apiKeys": {"existingSecret": "keys"}}}
TLS = {"security": {"tls": {"secretName": "tls"}}}
GATEWAY = {"gateway": {"enabled": True}}
S3 = {"model": {"source": "s3", "s3": {"uri": "s3://bucket/prefix"}}}
PVC = {"model": {"source": "pvc", "pvc": {"claimName": "claim"}}}
SCRAPED = {"monitoring": {"podMonitor": {"enabled": True}}}
KEDA = over(SCRAPED, {"autoscaling": {"mode": "keda"}})

# What must be so for a value to be of use: of the longest beginning of its path that stands here.
CONTEXTS: Mapping[str, Mapping[str, Any]] = {
    "model.path": PVC,
    "model.s3": S3,
    "model.hub": {"model": {"source": "hub", "hub": {"id": "owner/model"}, "cache": {"type": "emptyDir"}}},
    "model.pvc": PVC,
    "model.image": {"model": {"source": "image", "image": {"reference": "registry/model:1"}}},
    "model.hostPath": {"model": {"source": "hostPath", "hostPath": {"path": "/models"}}},
    "model.cache.type": S3,
    "model.cache": over(S3, {"model": {"cache": {"type": "emptyDir"}}}),
    "model.cache.claimName": over(S3, {"model": {"cache": {"type": "pvc", "claimName": "claim"}}}),
    "priority.value": {"priority": {"create": True}},
    # `insecure` contradicts a Secret of keys.
    "security.insecure": {"security": {"apiKeys": {"existingSecret": ""}}},
    "security.apiKeys.generate": over(TLS, {"security": {"apiKeys": {"existingSecret": ""}}}),
    "security.tls.caKey": TLS,
    "security.tls.clientCA": over(TLS, {"security": {"tls": {"clientCA": {"secretName": "ca"}}}}),
    "security.tls.clientSecretName": over(TLS, {"security": {"tls": {"clientCA": {"secretName": "ca"}}}}),
    "networkPolicy.gatewayClients": GATEWAY,
    "monitoring.podMonitor": {"monitoring": {"podMonitor": {"enabled": True}}},
    "monitoring.rules": {"monitoring": {"rules": {"enabled": True}}},
    "monitoring.dashboards": {"monitoring": {"dashboards": {"enabled": True}}},
    "autoscaling": KEDA,
    "autoscaling.mode": SCRAPED,
    "autoscaling.workHours": over(KEDA, {"autoscaling": {"workHours": {"enabled": True}}}),
    "route": {"route": {"enabled": True, "parentRefs": [{"name": "gateway"}]}},
    "inferencePool": {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}},
    "gateway": GATEWAY,
    "gateway.lendKey": over(GATEWAY, {"networkPolicy": {"gatewayClients": [{"podSelector": {}}]}}),
    "placement.pools": {"placement": {"capacity": "spot-preferred"}},
}
# Values that only allow what is refused without them, and what that is.
PERMITS: Mapping[str, Mapping[str, Any]] = {
    "autoscaling.prometheus.scrapedElsewhere": {"autoscaling": {"mode": "keda"}},
    "gateway.insecure": over(GATEWAY, {"gateway": {"lendKey": True}}),
}
# What must be said together with a changed value.
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "model.source": {"model": {"s3": {"uri": "s3://bucket/prefix"}}},
    "gateway.service.type": {"gateway": {"tlsSecretName": "https"}},
    "serviceAccount.create": {"serviceAccount": {"name": "other"}},
}


@pytest.mark.parametrize("section", dict.fromkeys(leaf.path[0] for leaf in leaves() if leaf.path[0] != "settings"))
def test_each_documented_value_changes_what_is_rendered(section: str) -> None:
    """Settings of the programs apart: see below."""
    of_section = [leaf for leaf in leaves() if leaf.path[0] == section and "settings" not in leaf.path]
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(_unchanged, of_section))
    assert done
    assert not [fault for fault in done if fault]


@pytest.mark.parametrize(
    ("place", "file"), [(("settings",), "soloist.yaml"), (("gateway", "settings"), "gateway.yaml")]
)
def test_each_setting_reaches_the_file_as_it_was_given(place: tuple[str, ...], file: str) -> None:
    given = {leaf.path[-1]: another(leaf) for leaf in leaves() if leaf.path[:-1] == place}
    if "traces" in given:
        given["traces"] = "http://collector:4318"
    # Together they are longer than a spot node lives.
    documents = render(over(over(GATEWAY, {"placement": {"capacity": "on-demand"}}), of(place, given)))
    written = yaml.safe_load(settings_file(documents, file))
    assert {name: written[name] for name in given} == given


def _unchanged(leaf: Value) -> str | None:
    """What is wrong with a value, or None where another one shows."""
    name = ".".join(leaf.path)
    context = over(BASE, _context(name))
    value = another(leaf)
    if name in PERMITS:
        return _permits_nothing(leaf, over(BASE, PERMITS[name]))
    if over(context, of(leaf.path, value)) == context:  # it is what makes the context
        value = leaf.default
    changed = over(over(context, TOGETHER.get(name, {})), of(leaf.path, value))
    try:
        before, after = _lasting(render(context)), _lasting(render(changed))
    except RenderError as error:
        return f"{name}: {value!r} is refused: {error}"
    if before == after:
        return f"{name}: {value!r} changes nothing"
    if isinstance(value, str) and value.startswith(("other", "7")) and json.dumps(value)[1:-1] not in json.dumps(after):
        return f"{name}: {value!r} is nowhere to be seen"
    return None


def _permits_nothing(leaf: Value, refused: dict[str, Any]) -> str | None:
    """What is wrong with a value that should allow `refused`."""
    name = ".".join(leaf.path)
    try:
        render(over(refused, of(leaf.path, another(leaf))))
    except RenderError as error:
        return f"{name}: does not allow what it should: {error}"
    try:
        render(refused)
    except RenderError as error:
        return None if name in str(error) else f"{name}: is not named by the refusal: {error}"
    return f"{name}: what it allows is allowed without it"


def _context(name: str) -> Mapping[str, Any]:
    begins = [begin for begin in CONTEXTS if name == begin or name.startswith(f"{begin}.")]
    return CONTEXTS[max(begins, key=len)] if begins else {}


def _lasting(documents: list[Document]) -> list[Document]:
    """Without the key that is made anew each time."""
    return [{**d, "stringData": sorted(d["stringData"])} if "stringData" in d else d for d in documents]


def test_k8s_06_the_size_of_shared_memory_reaches_the_pod() -> None:
    [deployment] = [d for d in render({"shm": {"size": "3Gi"}}) if d["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("leaf", leaves(), ids=lambda leaf: ".".join(leaf.path))
def test_the_schema_refuses_wrong_values_of_each(leaf: Value) -> None:
    taken = [value for value in wrong(leaf) if not errors(of(leaf.path, value))]
    assert not taken


def test_helm_names_each_wrong_value() -> None:
    """One run of helm with every value wrong: each has its line."""
    values: dict[str, Any] = {}
    for leaf in leaves():
        values = over(values, of(leaf.path, {"a": ["b"]}))
    with pytest.raises(RenderError) as refused:
        render(values)
    lines = re.findall(r"^ *- at '/(\S*)': (.+)$", str(refused.value), flags=re.MULTILINE)
    named = {place for place, _ in lines}
    unnamed = ["/".join(leaf.path) for leaf in leaves() if not any(_covers(place, leaf.path) for place in named)]
    assert not unnamed


def _covers(place: str, path: tuple[str, ...]) -> bool:
    here = "/".join(path)
    return place == here or place.startswith(f"{here}/")


def test_k8s_06_helm_refuses_an_unknown_name_in_every_map() -> None:
    values: dict[str, Any] = {}
    for path in maps():
        values = over(values, of((*path, "shmSize"), 1))
    with pytest.raises(RenderError) as refused:
        render(values)
    places = re.findall(r"at '/?(\S*)': additional properties 'shmSize' not allowed", str(refused.value))
    assert sorted(places) == sorted("/".join(path) for path in maps())


def test_every_value_of_the_schema_is_documented() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    documented = {leaf.path for leaf in leaves()} | set(maps())

    def below(part: Mapping[str, Any], path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = []
        for name, inner in part.get("properties", {}).items():
            found += [(*path, name), *below(inner, (*path, name))]
        return found

    assert set(below(schema, ())) - documented == {("global",)}
