"""Who asks: by key, by certificate, or anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequestError
from service.errors import CallerLimitError, UnauthenticatedError
from service.keys import KeyFile, entry_text, hash_of
from service.rpc.access import ANYBODY, Access, Caller, CallerTurns

CHAT = "/soloist.v1.ChatService/Chat"
KEY = "a-key-that-nobody-else-has"
PEM = b"-----BEGIN CERTIFICATE-----"


@pytest.fixture
def access(tmp_path: Path) -> Access:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n" + entry_text({"name": "web", "hash": hash_of(KEY), "session_scope": "team"}))
    return Access(KeyFile(path))


def test_without_keys_anybody_may_ask() -> None:
    assert Access().caller(CHAT, None, {}) is ANYBODY
    ANYBODY.check("any session", 100)


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
def test_a_key_names_its_caller(access: Access, scheme: str) -> None:
    found = access.caller(CHAT, [("x", "y"), ("authorization", scheme + KEY)], {})
    assert (found.name, found.scope) == ("key:web", "key:team")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        [("authorization", "")],
        [("authorization", KEY)],
        [("authorization", f"Bearer{KEY}")],
        [("authorization", f"Bearer {KEY} {KEY}")],
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")],
        [("authorization", f"Bearer {KEY}".encode())],
        [("authorization", "Bearer \udcff")],
        [("authorization-bin", f"Bearer {KEY}")],
        [("authorization", "Bearer " + "x" * 1_000_000)],
    ],
)
def test_sec_05_anything_else_is_nobody(access: Access, metadata: Any) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        access.caller(CHAT, metadata, {"x509_pem_cert": [PEM], "x509_common_name": [b"somebody"]})
    assert str(caught.value) == str(UnauthenticatedError())


def test_only_health_is_open_by_default(access: Access) -> None:
    assert access.caller("/grpc.health.v1.Health/Check", None, {}) is ANYBODY
    for closed in ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "unknown", "/grpc.healthy/X"):
        with pytest.raises(UnauthenticatedError):
            access.caller(closed, None, {})


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ({"x509_subject_alternative_name": [b"spiffe://a/b", b"c"], "x509_common_name": [b"d"]}, "cert:spiffe://a/b"),
        ({"x509_subject_alternative_name": [], "x509_common_name": [b"d"]}, "cert:d"),
        ({"x509_common_name": [b"\x1b[2J\xff"]}, "cert:\\x1b[2J\\xff"),
        ({"x509_common_name": [b"\\x1b[2J"]}, "cert:\\\\x1b[2J"),
    ],
)
def test_a_certificate_names_its_caller(peer: dict[str, list[bytes]], name: str) -> None:
    found = Access().caller(CHAT, None, {"x509_pem_cert": [PEM], **peer})
    assert found.name == found.scope == name


def test_a_certificate_without_a_name_is_known_by_its_digest() -> None:
    one, other = (Access().caller(CHAT, None, {"x509_pem_cert": [pem]}) for pem in (PEM, PEM + b"x"))
    assert one.name.startswith("cert:sha256:")
    assert one.name != other.name


def test_what_a_caller_may_is_checked_by_field() -> None:
    caller = Caller("key:a", None, max_priority=3)
    caller.check("", 3)
    for session_id, priority, field in (("s", 0, "session_id"), ("", 4, "priority")):
        with pytest.raises(InvalidRequestError) as caught:
            caller.check(session_id, priority)
        assert caught.value.field == field


def test_turns_are_counted_for_each_caller_and_given_back() -> None:
    turns, one, other = CallerTurns(), Caller("key:a", "", 1), Caller("key:b", "", 1)
    with turns.one_more(one), turns.one_more(other), turns.one_more(ANYBODY), turns.one_more(ANYBODY):
        one_too_many = turns.one_more(one)
        with pytest.raises(CallerLimitError):
            one_too_many.__enter__()
    with pytest.raises(KeyError), turns.one_more(one):
        raise KeyError
    with turns.one_more(one):
        pass
