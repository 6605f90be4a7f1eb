"""What the chart hands to the programs, read by the programs' own code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import _parser
from service.keys import read_keys
from service.settings import Settings, load_gateway_settings, load_settings
from tests.helm.examples import everything
from tests.helm.leaves import another, leaves, over
from tests.helm.rendering import Document, ci_files, pod_specs, render, server, server_pod, settings_file, the

EXAMPLES = [*ci_files(), None]
TLS: Mapping[str, Any] = {"security": {"tls": {"secretName": "tls"}}}
LENT: Mapping[str, Any] = {
    "gateway": {"enabled": True, "lendKey": True, "tlsSecretName": "https"},
    "networkPolicy": {"gatewayClients": [{"podSelector": {}}]},
}
MUTUAL: Mapping[str, Any] = over(
    TLS, {"security": {"tls": {"clientCA": {"secretName": "ca"}, "clientSecretName": "client"}}}
)


def settings_of(documents: list[Document], folder: Path) -> Settings:
    """The settings of the server's container, from its file, arguments and variables."""
    file = folder / "soloist.yaml"
    file.write_text(settings_file(documents), encoding="utf-8")
    container = server(documents)
    assert container["args"] == ["serve", "--config", "/etc/soloist/soloist.yaml"]
    environment = {v["name"]: v.get("value", "some-name") for v in container["env"]}
    return load_settings({"config": str(file)}, environment)


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem if path else "everything")
def test_the_server_takes_what_the_chart_gives_it(values: Path | None, tmp_path: Path) -> None:
    documents = render(files=[values]) if values else render(everything())
    settings = settings_of(documents, tmp_path)
    ports = {port["name"]: str(port["containerPort"]) for port in server(documents)["ports"]}
    listens = {"grpc": settings.listen, "metrics": settings.metrics_listen, "probes": settings.probe_listen}
    assert {name: str(listen).rpartition(":")[2] for name, listen in listens.items()} == ports
    assert settings.kubernetes is any(d["kind"] == "ClusterRole" for d in documents)
    assert settings.engine.device == ("cuda" if "nvidia.com/gpu" in server(documents)["resources"]["limits"] else "cpu")


def test_the_server_takes_every_setting_that_the_chart_takes(tmp_path: Path) -> None:
    changed = {leaf.path[1]: another(leaf) for leaf in leaves() if leaf.path[0] == "settings"}
    changed |= {"traces": "http://collector:4318", "threads": 1}
    documents = render({"settings": changed, "placement": {"capacity": "on-demand"}})
    settings = settings_of(documents, tmp_path)
    default = settings_of(render(), tmp_path)
    for name in changed:
        has, had = (getattr(s, name) if hasattr(s, name) else getattr(s.engine, name) for s in (settings, default))
        assert has != had, name


def test_every_file_that_settings_name_is_mounted(tmp_path: Path) -> None:
    documents = render(MUTUAL)
    settings = settings_of(documents, tmp_path)
    named = {settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.keys}
    assert named == {
        f"/etc/soloist/{path}" for path in _projected(the(documents, "Deployment")["spec"]["template"]["spec"])
    } - {"/etc/soloist/soloist.yaml"}


def _projected(pod: Document) -> set[str]:
    [etc] = [volume for volume in pod["volumes"] if volume["name"] == "etc"]
    return {
        item["path"] for source in etc["projected"]["sources"] for part in source.values() for item in part["items"]
    }


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ({"source": "embedded"}, "embedded"),
        ({"source": "s3", "s3": {"uri": "s3://bucket/prefix"}}, "s3://bucket/prefix"),
        ({"source": "hub", "hub": {"id": "a/b"}, "cache": {"type": "emptyDir"}}, "a/b"),
        ({"source": "pvc", "pvc": {"claimName": "c"}, "path": "qwen/7b"}, "/models/qwen/7b"),
        ({"source": "image", "image": {"reference": "a:1"}}, "/models"),
        ({"source": "hostPath", "hostPath": {"path": "/m"}, "path": "a.gguf"}, "/models/a.gguf"),
    ],
)
def test_each_source_of_weights_is_a_model_of_the_server(model: Mapping[str, Any], wanted: str, tmp_path: Path) -> None:
    documents = render({"model": model})
    assert settings_of(documents, tmp_path).engine.model == wanted
    mounted = {mount["mountPath"]: mount.get("readOnly", False) for mount in server(documents)["volumeMounts"]}
    assert mounted.get("/models") is (True if wanted.startswith("/models") else None)


def test_weights_from_a_bucket_have_their_endpoint_region_credentials_and_cache(tmp_path: Path) -> None:
    documents = render(everything())
    engine = settings_of(documents, tmp_path).engine
    assert (engine.s3_endpoint, engine.model_cache) == ("http://minio:9000", "/cache")
    variables = {variable["name"]: variable for variable in server(documents)["env"]}
    assert variables["AWS_REGION"]["value"] == "x"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert variables[name]["valueFrom"]["secretKeyRef"] == {"name": "minio", "key": name}


@pytest.mark.parametrize("values", EXAMPLES[:-1], ids=lambda path: path.stem)
def test_weights_of_pods_that_start_on_new_nodes_stream_to_the_device(values: Path, tmp_path: Path) -> None:
    """A cache on the node would be filled first, each time, by a pod that people wait for."""
    documents = render(files=[values])
    pools = str(server_pod(documents).get("affinity"))
    cached = settings_of(documents, tmp_path).engine.model_cache is not None
    assert not (cached and "gpu-spot" in pools)


def test_the_key_that_the_chart_makes_opens_the_server(tmp_path: Path) -> None:
    secret = the(render(), "Secret")["stringData"]
    (tmp_path / "keys.yaml").write_text(secret["keys.yaml"], encoding="utf-8")
    found = read_keys(tmp_path / "keys.yaml").find(secret["key"])
    assert found is not None
    assert found.digest == hashlib.sha256(secret["key"].encode()).digest()
    assert re.fullmatch(r"soloist-[A-Za-z0-9]{43}", secret["key"])
    assert secret["key"] not in secret["keys.yaml"]


def test_two_installations_have_two_keys() -> None:
    first, second = (the(render(release="soloist", namespace=name), "Secret") for name in ("one", "two"))
    assert first["stringData"]["key"] != second["stringData"]["key"]


def test_no_key_is_made_where_there_is_one_or_none_is_wanted() -> None:
    for security in ({"apiKeys": {"existingSecret": "keys"}}, {"insecure": True}):
        assert not [d for d in render({"security": security}) if d["kind"] == "Secret"]


@pytest.mark.parametrize(
    "values", [{}, TLS, MUTUAL, {"security": {"insecure": True}}], ids=["key", "tls", "mtls", "open"]
)
def test_the_helm_test_asks_for_one_turn_in_words_that_the_client_knows(values: Mapping[str, Any]) -> None:
    pod = the(render(values), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [container] = pod["spec"]["containers"]
    parser, _ = _parser(container["args"])
    arguments = parser.parse_args(container["args"])
    assert (arguments.target, arguments.prompt) == ("soloist.soloist.svc:50051", "Say hello in one word.")
    files = [arguments.api_key_file, arguments.tls_ca, arguments.tls_cert, arguments.tls_key]
    wanted = {
        0: {"/etc/soloist/client/key"},
        1: {"/etc/soloist/client/key", "/etc/soloist/client/ca.crt"},
        2: {f"/etc/soloist/client/{name}" for name in ("key", "ca.crt", "tls.crt", "tls.key")},
        3: set(),
    }[[{}, TLS, MUTUAL].index(values) if values in ({}, TLS, MUTUAL) else 3]
    assert {str(file) for file in files if file is not None} == wanted
    mounted = _projected(pod["spec"]) if wanted else set()
    assert {f"/etc/soloist/{path}" for path in mounted} == wanted


def test_a_certificate_of_a_public_signer_needs_no_file() -> None:
    [container] = the(render(over(TLS, {"security": {"tls": {"caKey": ""}}})), "Pod")["spec"]["containers"]
    assert "--tls" in container["args"]


@pytest.mark.parametrize("values", [{}, TLS, MUTUAL, LENT])
def test_the_gateway_takes_what_the_chart_gives_it(values: Mapping[str, Any], tmp_path: Path) -> None:
    documents = render(over({"gateway": {"enabled": True}}, values))
    pod = the(documents, "Deployment", "soloist-gateway")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["args"] == ["gateway", "--config", "/etc/soloist/gateway.yaml"]
    file = tmp_path / "gateway.yaml"
    file.write_text(settings_file(documents, "gateway.yaml"), encoding="utf-8")
    settings = load_gateway_settings({"config": str(file)}, {})
    assert (settings.target, settings.listen) == ("soloist.soloist.svc:50051", "0.0.0.0:8080")
    named = {
        *(settings.https_cert, settings.https_key, settings.api_key_file),
        *(settings.tls_ca, settings.tls_cert, settings.tls_key),
    } - {None}
    assert named == {f"/etc/soloist/{path}" for path in _projected(pod)} - {"/etc/soloist/gateway.yaml"}
    grace_s = pod["terminationGracePeriodSeconds"]
    assert (
        container["lifecycle"]["preStop"]["sleep"]["seconds"] + settings.propagation_s + settings.grace_s + 5 <= grace_s
    )


def test_the_gateway_is_no_open_door_unless_it_lends_its_key() -> None:
    """Callers send a key of the server's. With the chart's own in the gateway, its port would be as good as a key."""
    for lend in (False, True):
        documents = render(over(LENT, {"gateway": {"lendKey": lend}}))
        assert ("api_key_file" in settings_file(documents, "gateway.yaml")) is lend


def hosts_of(values: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """The names that the gateway answers to, as it reads them itself; none is any."""
    file = folder / "gateway.yaml"
    file.write_text(settings_file(render(values, release="chat", namespace="shop"), "gateway.yaml", "chat-soloist"))
    return load_gateway_settings({"config": str(file)}, {}).hosts


def test_a_gateway_that_needs_no_key_answers_to_its_own_names_only(tmp_path: Path) -> None:
    """Else a page elsewhere has its own name point there, and reads answers in the browser of somebody inside."""
    service = the(render(LENT, release="chat", namespace="shop"), "Service", "chat-soloist-gateway")
    name = service["metadata"]["name"]
    its_own = {name, f"{name}.shop", f"{name}.shop.svc", f"{name}.shop.svc.cluster.local", "localhost", "127.0.0.1"}
    assert set(hosts_of(LENT, tmp_path)) == its_own
    unlocked = over(LENT, {"gateway": {"lendKey": False}, "security": {"insecure": True}})
    assert set(hosts_of(unlocked, tmp_path)) == its_own
    assert hosts_of(over(LENT, {"gateway": {"settings": {"hosts": ["chat.example"]}}}), tmp_path) == ("chat.example",)
    assert hosts_of({"gateway": {"enabled": True}}, tmp_path) == ()


def test_changed_settings_start_pods_again_and_others_do_not() -> None:
    def sums(values: Mapping[str, Any]) -> list[str]:
        found = render(over({"gateway": {"enabled": True}}, values))
        return [
            m["annotations"]["checksum/settings"] for name, m, _ in pod_specs(found) if name.startswith("Deployment")
        ]

    assert sums({"settings": {"slots": 5}})[0] != sums({})[0]
    assert sums({"settings": {"slots": 5}})[1] == sums({})[1]
    assert sums({"gateway": {"settings": {"page": False}}})[1] != sums({})[1]
    assert sums({"replicas": 3}) == sums({})
