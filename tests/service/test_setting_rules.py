"""Settings that must fit each other."""

from __future__ import annotations

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
