"""What settings must be to each other. Each rule gives the settings that it is about, and what would be right."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from service.settings import Settings


def broken_rules(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """(names, most to blame first; the sentence that follows the name) for each rule that does not hold."""
    if settings.active_turns > settings.engine.slots:
        yield (
            ("max_active_turns", "slots"),
            f"must not exceed slots, as a turn needs one; got {settings.active_turns} and {settings.engine.slots}",
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        yield ("tls_cert", "tls_key"), "must be given together with the other of --tls-cert and --tls-key"
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        yield ("tls_client_ca",), "needs --tls-cert and --tls-key: without TLS clients show no certificates"
    processors = os.cpu_count() or 1
    if (settings.engine.threads or 1) > processors:
        yield (
            ("threads",),
            f"must be at most {processors}, the processors of this machine; got {settings.engine.threads}",
        )
    if settings.traces is not None and not _is_collector(settings.traces):
        yield (
            ("traces",),
            f"must be http://HOST:PORT or https://HOST:PORT of an OTLP collector, or `off`; got {settings.traces!r}",
        )
    yield from _broken_of_probes(settings)
    yield from _broken_in_cluster(settings)
    if settings.insecure or settings.tls_cert is not None or settings.keys is not None:
        return
    if not is_loopback(settings.listen):
        yield (
            ("listen",),
            (
                f"{settings.listen} is open to other machines; give --tls-cert and --tls-key, or --keys, or say "
                "--insecure where something else keeps strangers away"
            ),
        )


def _broken_of_probes(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in ("listen", "metrics_listen"):
        other = getattr(settings, name)
        if settings.probe_listen is not None and other is not None and _same_port(settings.probe_listen, other):
            yield ("probe_listen",), f"must be a port of its own; --{name.replace('_', '-')} has {other}"


def _broken_in_cluster(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    if settings.kubernetes:
        for name in ("pod_name", "pod_namespace", "node_name"):
            if getattr(settings, name) is None:
                yield (
                    ("kubernetes",),
                    f"needs --{name.replace('_', '-')}, which a pod gets from the downward API (`fieldRef`)",
                )
    elif settings.do_not_disrupt_s > 0:
        yield ("do_not_disrupt_s",), "needs --kubernetes: it is the cluster's API that holds Karpenter off"


def _is_collector(url: str) -> bool:
    """Whether gRPC can be spoken to it: a scheme and a host, perhaps a port, and nothing else but a slash."""
    try:
        parts = urlsplit(url)
        port = parts.port  # raises where it is no port
    except ValueError:
        return False
    place = (parts.hostname or "") + ("" if port is None else str(port))
    plain = place.isascii() and place.isprintable() and " " not in place and parts.username is None
    rest = (parts.path.strip("/"), parts.query, parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and not any(rest)


def _same_port(one: str, other: str) -> bool:
    """Whether both would take one port of one address. Port 0 is any free one."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    everywhere = {"0.0.0.0", "[::]"}
    return port == other_port != "0" and (host == other_host or bool(everywhere & {host, other_host}))


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes put this variable into the environment, for a Service whose name begins like ours."""
    return bool(
        re.fullmatch(r"SOLOIST_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)", variable)
        or re.match(r"(tcp|udp|sctp)://", value)
    )


def is_loopback(listen: str) -> bool:
    """Whether only this machine reaches HOST:PORT."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
