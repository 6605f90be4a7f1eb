"""Settings that must fit each other."""

from __future__ import annotations

import os

import pytest

from service.setting_rules import is_loopback
from service.settings import SettingsError, load_settings


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.3.2.1:1", "[::1]:1", "localhost:1"])
def test_the_loopback_needs_no_permission(listen: str) -> None:
    assert is_loopback(listen)
    load_settings({"listen": listen}, {})


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.evil.org:1"])
def test_beyond_the_loopback_needs_tls_or_keys_or_a_word(listen: str) -> None:
    assert not is_loopback(listen)
    with pytest.raises(SettingsError) as caught:
        load_settings({"listen": listen}, {})
    assert str(caught.value).startswith(f"--listen: {listen} is open to other machines; give --tls-cert")
    assert "\n" not in str(caught.value)

    load_settings({"listen": listen, "insecure": "true"}, {})
    load_settings({"listen": listen, "keys": "keys.yaml"}, {})
    load_settings({"listen": listen, "tls_cert": "a", "tls_key": "b"}, {})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_cert": "a"}, "--tls-cert: must be given together"),
        ({"tls_key": "a"}, "--tls-key: must be given together"),
        ({"tls_client_ca": "a"}, "--tls-client-ca: needs --tls-cert"),
    ],
)
def test_half_of_tls_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings(given, {})


def test_the_port_for_probes_needs_no_permission() -> None:
    load_settings({"probe_listen": "0.0.0.0:9401"}, {})


@pytest.mark.parametrize(
    ("probes", "says"),
    [
        ("127.0.0.1:50051", "--probe-listen: must be a port of its own; --listen has 127.0.0.1:50051"),
        ("0.0.0.0:9400", "--probe-listen: must be a port of its own; --metrics-listen has 127.0.0.1:9400"),
    ],
)
def test_the_port_for_probes_is_nobody_elses(probes: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings({"probe_listen": probes}, {})


def test_ports_that_only_look_alike_are_fine() -> None:
    load_settings({"probe_listen": "127.0.0.2:50051"}, {})
    load_settings({"probe_listen": "127.0.0.1:0", "listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}, {})
    load_settings({"probe_listen": "127.0.0.1:9400", "metrics_listen": "off"}, {})


@pytest.mark.parametrize(
    "url", ["localhost:4317", "ftp://a:1", "http://", "http://a:x", "http://a b:1", "http://a/v1/traces"]
)
def test_traces_go_to_an_address(url: str) -> None:
    with pytest.raises(SettingsError, match="--traces: must be http://HOST:PORT or https://HOST:PORT"):
        load_settings({"traces": url}, {})


@pytest.mark.parametrize("url", ["http://localhost:4317", "https://otel.example.org", "http://[::1]:4317/", "off"])
def test_addresses_of_collectors_are_taken(url: str) -> None:
    load_settings({"traces": url}, {})


def test_threads_are_as_many_as_the_machine_has_processors() -> None:
    processors = os.cpu_count() or 1
    load_settings({"threads": str(processors)}, {})
    with pytest.raises(SettingsError, match=rf"--threads: must be at most {processors}, .* got 100000"):
        load_settings({"threads": "100000"}, {})


POD = {"pod_name": "soloist-7d4b-x2x", "pod_namespace": "soloist", "node_name": "ip-10-0-0-1.ec2.internal"}


@pytest.mark.parametrize("missing", POD)
def test_the_cluster_is_asked_about_a_pod_that_has_a_name(missing: str) -> None:
    load_settings({"kubernetes": "on", **POD}, {})
    with pytest.raises(SettingsError, match=rf"--kubernetes: needs --{missing.replace('_', '-')}, .* downward API"):
        load_settings({"kubernetes": "on", **POD, missing: None}, {})


def test_karpenter_is_held_off_through_the_cluster_only() -> None:
    load_settings({"kubernetes": "on", "do_not_disrupt_s": "600", **POD}, {})
    with pytest.raises(SettingsError, match="--do-not-disrupt-s: needs --kubernetes"):
        load_settings({"do_not_disrupt_s": "600"}, {})


@pytest.mark.parametrize("name", ["../nodes/other", "Upper", "a/b", "-a", "x" * 254, "a\n"])
def test_names_of_the_cluster_cannot_lead_elsewhere(name: str) -> None:
    with pytest.raises(SettingsError, match="--pod-name: must be a name as Kubernetes has them"):
        load_settings({"pod_name": name}, {})
