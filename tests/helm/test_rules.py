"""Values that contradict each other end the installation with a sentence, whatever helm command renders them."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from tests.helm.leaves import over
from tests.helm.rendering import CHART, RenderError, render

S3: dict[str, Any] = {"model": {"source": "s3", "s3": {"uri": "s3://bucket/prefix"}}}
TLS: dict[str, Any] = {"security": {"tls": {"secretName": "tls"}}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"settings": {"grace_s": 72}},
        "A pod on a spot node has 110 s to leave, and these values come to 111 s: lower settings.grace_s",
    ),
    (
        {"security": {"insecure": True, "apiKeys": {"existingSecret": "keys"}}},
        "security.insecure means neither TLS nor keys: unset it",
    ),
    (over(TLS, {"security": {"insecure": True}}), "security.insecure means neither TLS nor keys: unset it"),
    (
        {"security": {"apiKeys": {"generate": False}}},
        "Nobody would keep strangers from the server: set security.apiKeys.generate or .existingSecret",
    ),
    (
        {"security": {"tls": {"clientCA": {"secretName": "ca"}}}},
        "security.tls.clientCA needs security.tls.secretName",
    ),
    (
        over(TLS, {"security": {"tls": {"clientSecretName": "client"}}}),
        "security.tls.clientSecretName is shown to a server that asks for certificates",
    ),
    (
        {"probes": {"startup": {"budgetSeconds": 599}}},
        "probes.startup.budgetSeconds is 599: on a GPU loading and capturing may take 600 s and more",
    ),
    (
        {"settings": {"max_active_turns": 3, "slots": 2}},
        "settings.max_active_turns is 3 and settings.slots 2: a turn needs a slot",
    ),
    (
        {"settings": {"do_not_disrupt_s": 0.5}, "kubernetes": {"enabled": False}},
        "settings.do_not_disrupt_s needs kubernetes.enabled: it is the cluster's API that holds Karpenter off",
    ),
    (
        {"kubernetes": {"admissionPolicy": True, "enabled": False}},
        "kubernetes.admissionPolicy bounds the rights of kubernetes.enabled, which is off",
    ),
    ({"settings": {"traces": "collector"}}, "settings.traces is collector: it must be http://HOST:PORT"),
    ({"settings": {"traces": "http://a:1/v1/traces"}}, "settings.traces is http://a:1/v1/traces: it must be"),
    ({"route": {"enabled": True}}, "route.parentRefs is empty: name the gateway"),
    ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name is empty"),
    (
        over(TLS, {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}),
        "inferencePool speaks plain HTTP/2 to its pods and cannot be used with security.tls.secretName",
    ),
    (
        {"placement": {"capacity": "anywhere", "onDemandFloor": 1}},
        "placement.onDemandFloor needs nodes with the label soloist.dev/pool",
    ),
    (
        over(TLS, {"security": {"tls": {"clientCA": {"secretName": "ca"}}}, "gateway": {"enabled": True}}),
        "security.tls.clientCA asks the gateway for a certificate too, and it has none",
    ),
    (
        {"kubernetes": {"enabled": True}, "serviceAccount": {"create": False}},
        "kubernetes.enabled would give its rights to the service account default",
    ),
    ({"podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels: app.kubernetes.io/name is the chart's own"),
    ({"podLabels": {"soloist.dev/tier": "x"}}, "podLabels: soloist.dev/tier is the chart's own"),
    *(
        ({"model": {"source": source}}, f"model.source is {source}, and model.{name} is empty: say which model")
        for source, name in {
            "s3": "s3.uri",
            "hub": "hub.id",
            "pvc": "pvc.claimName",
            "image": "image.reference",
            "hostPath": "hostPath.path",
        }.items()
    ),
    (
        {"model": {"pvc": {"claimName": "claim"}}},
        "model.pvc.claimName is set, and model.source is embedded: set model.source to pvc",
    ),
    ({"model": {"path": "qwen"}}, "model.path is for a model on a volume, and model.source is embedded"),
    (
        {"model": {"cache": {"type": "emptyDir"}}},
        "model.cache keeps what s3 and hub bring, and model.source is embedded",
    ),
    (
        {"model": {"source": "hub", "hub": {"id": "owner/model"}}},
        "model.source hub needs a place for what is downloaded: set model.cache.type",
    ),
    (over(S3, {"model": {"cache": {"type": "pvc"}}}), "model.cache.type is pvc, and model.cache.claimName is empty"),
    (
        {"autoscaling": {"mode": "keda", "minReplicas": 5}},
        "autoscaling.maxReplicas is 4 and minReplicas 5: the most must not be fewer than the fewest",
    ),
    (
        {"autoscaling": {"mode": "keda"}},
        "autoscaling.mode keda asks Prometheus who waits, and nothing of this chart has the pods scraped",
    ),
    (
        {"gateway": {"enabled": True, "lendKey": True}},
        "Nobody would need a key at the gateway, and everybody may reach it: name its callers",
    ),
    (
        {"gateway": {"enabled": True, "service": {"type": "LoadBalancer"}}},
        "gateway.service.type LoadBalancer opens the gateway beyond the cluster, where keys could be read",
    ),
    (
        {"gateway": {"enabled": True, "lendKey": True, "insecure": True, "settings": {"cors_origins": ["*"]}}},
        "gateway.settings.cors_origins has *, and nobody needs a key at the gateway",
    ),
    *(
        (
            {"autoscaling": {"mode": mode, "workHours": {"enabled": True}}},
            f"autoscaling.workHours needs autoscaling.mode keda, which can end the last pod; it is {mode}",
        )
        for mode in ("none", "hpa")
    ),
]


@functools.cache
def said(case: int) -> str:
    """What helm says to the values of this case."""
    with pytest.raises(RenderError) as refused:
        render(REFUSED[case][0])
    return str(refused.value)


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=lambda case: REFUSED[case][1][:50])
def test_contradicting_values_are_refused_with_a_sentence(case: int) -> None:
    assert REFUSED[case][1] in said(case)


def test_every_rule_of_the_chart_is_tried() -> None:
    text = (CHART / "templates" / "_checks.tpl").read_text(encoding="utf-8")
    rules = re.findall(r'fail (?:\(printf )?"([^"]+)"', text)
    assert len(rules) > 15
    patterns = {rule: ".+?".join(re.escape(part) for part in re.split("%[sd]", rule)) for rule in rules}
    with pytest.raises(RenderError) as misnamed:
        render(release="1abc")
    all_said = [str(misnamed.value), *(said(case) for case in range(len(REFUSED)))]
    assert not [rule for rule, pattern in patterns.items() if not any(re.search(pattern, line) for line in all_said)]


def test_values_are_refused_at_an_upgrade_as_at_an_installation() -> None:
    """The rules are part of the Deployment, which every command renders."""
    text = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    assert text.startswith('{{- include "soloist.checks" . -}}')
