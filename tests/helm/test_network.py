"""Who reaches which port: NetworkPolicies evaluated as a cluster's network would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.leaves import over
from tests.helm.rendering import Document, RenderError, of_kind, render, the

SERVER = {
    "app.kubernetes.io/name": "soloist",
    "app.kubernetes.io/instance": "soloist",
    "app.kubernetes.io/component": "server",
}
GATEWAY = {**SERVER, "app.kubernetes.io/component": "gateway"}
PORTS = {"grpc": 50051, "metrics": 9400, "probes": 9401, "http": 8080}


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _is(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> bool:
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        in_namespace = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
    else:
        in_namespace = namespace == "soloist"
    return in_namespace and _selects(peer.get("podSelector", {}), labels)


def lets_in(
    documents: list[Document], to: Mapping[str, str], port: str, labels: Mapping[str, str], namespace: str
) -> bool:
    """Whether a pod with these labels in this namespace reaches that port of a pod `to`. Policies add up."""
    policies = [d["spec"] for d in of_kind(documents, "NetworkPolicy") if _selects(d["spec"]["podSelector"], to)]
    policies = [policy for policy in policies if "Ingress" in policy["policyTypes"]]
    if not policies:
        return True
    for rule in (rule for policy in policies for rule in policy["ingress"]):
        ports = rule.get("ports")
        if ports and not any(entry["port"] in (port, PORTS[port]) for entry in ports):
            continue
        if "from" not in rule or any(_is(peer, labels, namespace) for peer in rule["from"]):
            return True
    return False


CLIENT = {"soloist.dev/client": "true"}


@pytest.mark.parametrize(
    ("port", "labels", "namespace", "let_in"),
    [
        ("grpc", CLIENT, "soloist", True),
        ("grpc", CLIENT, "shop", True),
        ("grpc", {}, "soloist", False),
        ("grpc", {}, "monitoring", False),
        ("metrics", {}, "monitoring", True),
        ("metrics", CLIENT, "shop", False),
        ("metrics", {}, "soloist", False),
        ("probes", CLIENT, "soloist", False),
        ("probes", {}, "monitoring", False),
    ],
)
def test_promise_20_clients_reach_grpc_and_monitoring_the_metrics_only(
    port: str, labels: dict[str, str], namespace: str, let_in: bool
) -> None:
    assert lets_in(render(), SERVER, port, labels, namespace) is let_in


def test_the_pods_of_the_chart_reach_each_other() -> None:
    documents = render({"gateway": {"enabled": True}})
    assert lets_in(documents, SERVER, "grpc", GATEWAY, "soloist")
    assert not lets_in(documents, SERVER, "grpc", GATEWAY, "elsewhere")
    assert lets_in(documents, SERVER, "grpc", the(documents, "Pod")["metadata"]["labels"], "soloist")
    assert lets_in(documents, GATEWAY, "http", {}, "anywhere")
    closed = render({"gateway": {"enabled": True}, "networkPolicy": {"gatewayClients": [{"podSelector": {}}]}})
    assert lets_in(closed, GATEWAY, "http", {}, "soloist")
    assert not lets_in(closed, GATEWAY, "http", {}, "anywhere")


def test_nobody_is_let_in_where_no_peers_are_named() -> None:
    """A rule without peers would let everybody in."""
    documents = render({"networkPolicy": {"clients": [], "monitoring": []}})
    assert not any(lets_in(documents, SERVER, port, CLIENT, "soloist") for port in PORTS)
    assert the(documents, "NetworkPolicy")["spec"]["ingress"] == []


NAMED: dict[str, Any] = {"networkPolicy": {"gatewayClients": [{"podSelector": {}}]}}
UNENFORCED = over(NAMED, {"networkPolicy": {"enabled": False}})
NO_KEYS = {"security": {"insecure": True}}
TLS_TO_IT = {"gateway": {"tlsSecretName": "https"}}


def gateway(**values: Any) -> dict[str, Any]:
    return {"gateway": {"enabled": True, **values}}


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        (gateway(), None),
        (gateway(lendKey=True), "name its callers in networkPolicy.gatewayClients"),
        (over(gateway(lendKey=True), NAMED), None),
        (over(gateway(lendKey=True), UNENFORCED), "name its callers in networkPolicy.gatewayClients"),
        (gateway(lendKey=True, insecure=True), None),
        # TLS hides what is said, and lets in whoever says it.
        (over(gateway(lendKey=True), TLS_TO_IT), "Nobody would need a key at the gateway"),
        (over(gateway(), NO_KEYS), "Nobody would need a key at the gateway"),
        (over(over(gateway(), NO_KEYS), NAMED), None),
        (gateway(service={"type": "LoadBalancer"}), "gateway.service.type LoadBalancer opens"),
        (gateway(service={"type": "NodePort"}), "set gateway.tlsSecretName"),
        (over(gateway(service={"type": "LoadBalancer"}), TLS_TO_IT), None),
        (over(gateway(service={"type": "LoadBalancer"}), NAMED), None),
        (gateway(service={"type": "LoadBalancer"}, insecure=True), None),
        (gateway(lendKey=True, insecure=True, settings={"cors_origins": ["*"]}), "Name the pages"),
        (gateway(settings={"cors_origins": ["*"]}), None),
    ],
)
def test_promise_20_a_gateway_that_strangers_could_use_is_refused(values: dict[str, Any], refused: str | None) -> None:
    if refused is None:
        assert render(values)
        return
    with pytest.raises(RenderError) as caught:
        render(values)
    assert refused in str(caught.value)


def egress(values: Mapping[str, Any]) -> set[tuple[str, int]]:
    """(to whom, port) of all that the server may reach."""
    found: set[tuple[str, int]] = set()
    for rule in the(render(values), "NetworkPolicy", "soloist")["spec"]["egress"]:
        for peer in rule.get("to", [{}]):
            who = peer.get("ipBlock", {}).get("cidr") or ("dns" if "podSelector" in peer else "anybody")
            found |= {(who, port["port"]) for port in rule["ports"]}
    return found


ALONE: dict[str, Any] = {"kubernetes": {"enabled": False}}
S3: dict[str, Any] = {"model": {"source": "s3", "s3": {"uri": "s3://bucket/prefix"}}}
AGENT = {("169.254.170.23/32", 80), ("fd00:ec2::23/128", 80)}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (ALONE, set()),
        ({}, {("0.0.0.0/0", 443)}),
        ({"networkPolicy": {"apiServer": {"cidr": "10.0.0.1/32", "port": 6443}}}, {("10.0.0.1/32", 6443)}),
        (over(ALONE, S3), AGENT | {("anybody", 443)}),
        (over(over(ALONE, S3), {"model": {"s3": {"endpoint": "http://minio:9000"}}}), AGENT | {("anybody", 9000)}),
        (over(over(ALONE, S3), {"model": {"s3": {"endpoint": "http://minio"}}}), AGENT | {("anybody", 80)}),
        (over(over(ALONE, S3), {"model": {"s3": {"endpoint": "https://minio"}}}), AGENT | {("anybody", 443)}),
        (
            over(ALONE, {"model": {"source": "hub", "hub": {"id": "a/b"}, "cache": {"type": "emptyDir"}}}),
            {("anybody", 443)},
        ),
        (over(ALONE, {"settings": {"traces": "http://collector:4318"}}), {("anybody", 4318)}),
        (over(ALONE, {"settings": {"traces": "http://collector"}}), {("anybody", 4317)}),
        (over(ALONE, {"settings": {"traces": "http://collector.tracing.svc:4319/"}}), {("anybody", 4319)}),
    ],
)
def test_promise_20_the_server_reaches_what_its_values_name(
    values: dict[str, Any], wanted: set[tuple[str, int]]
) -> None:
    assert egress(values) == {("dns", 53)} | wanted


def test_clients_see_every_pod_and_proxies_what_to_speak() -> None:
    spec = the(render(), "Service", "soloist")["spec"]
    assert spec["clusterIP"] == "None"
    [port] = spec["ports"]
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (50051, "grpc", "kubernetes.io/h2c")
    [port] = the(render({"security": {"tls": {"secretName": "tls"}}}), "Service", "soloist")["spec"]["ports"]
    assert port["appProtocol"] == "https"


def test_routes_lead_to_the_service_or_to_the_pool() -> None:
    route = {
        "route": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["a.example"],
        }
    }
    [rule] = the(render(route), "GRPCRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "soloist", "port": 50051}]
    assert [match["method"]["service"] for match in rule["matches"]] == [
        "soloist.v1.ChatService",
        "grpc.health.v1.Health",
    ]
    documents = render(over(route, {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}))
    [backend] = the(documents, "GRPCRoute")["spec"]["rules"][0]["backendRefs"]
    pool = the(documents, "InferencePool")
    assert (backend["group"], backend["kind"], backend["name"]) == (
        "inference.networking.k8s.io",
        "InferencePool",
        pool["metadata"]["name"],
    )
    assert pool["spec"]["selector"]["matchLabels"] == SERVER
    assert pool["spec"]["targetPorts"] == [{"number": 50051}]
