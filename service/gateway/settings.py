"""What `soloist gateway` can be told, as one frozen object. service.settings reads it from the outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.setting_rules import is_loopback
from service.setting_sources import declared
from service.setting_types import Kind, choice, count, flag, listen_address, optional, seconds, text

GATEWAY_PREFIX = "SOLOIST_GATEWAY_"


def _listed(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for part in value.split(",") if (word := part.strip())))


_NAMES = Kind(
    "A,B,...",
    _listed,
    ",".join,
    many=True,
    schema={"type": "array", "items": {"type": "string", "pattern": r"^[^,]+$"}},
)
_FILE = optional(text, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The whole configuration of a gateway. Times are seconds, sizes are counts or bytes as the name says."""

    target: str = declared("127.0.0.1:50051", text, "the servers, HOST:PORT with commas between")
    listen: str = declared("127.0.0.1:8080", listen_address, "address of the HTTP port, HOST:PORT; port 0 picks one")
    insecure: bool = declared(False, flag, "listen beyond the loopback without TLS")
    https_cert: str | None = declared(None, _FILE, "PEM certificate and chain: the HTTP port speaks TLS")
    https_key: str | None = declared(None, _FILE, "PEM key of that certificate")
    tls: bool = declared(False, flag, "speak TLS to the servers; a certificate that gRPC trusts is needed")
    tls_ca: str | None = declared(None, _FILE, "speak TLS to the servers; PEM certificate of their signer")
    tls_cert: str | None = declared(None, _FILE, "PEM certificate for servers that ask for one")
    tls_key: str | None = declared(None, _FILE, "and its PEM key")
    api_key_file: str | None = declared(None, _FILE, "file with the API key of callers that send none of their own")
    model_names: tuple[str, ...] = declared((), _NAMES, "more names under which callers may ask for the model")
    hosts: tuple[str, ...] = declared(
        (), _NAMES, "host names that callers may use; none given: on the loopback its own, beyond it any"
    )
    cors_origins: tuple[str, ...] = declared((), _NAMES, "pages elsewhere that may call, such as https://example.org")
    page: bool = declared(True, flag, "serve the chat page at /")
    deadline_s: float | None = declared(600.0, optional(seconds(1, 86_400), "none"), "longest time of one answer")
    max_turns: int = declared(64, count(1, 100), "requests for an answer that may run at once; one more is refused")
    max_body_bytes: int = declared(4 << 20, count(1024, 64 << 20), "largest body of a request")
    read_timeout_s: float = declared(30.0, seconds(0.1, 600), "a request must be there whole within")
    keep_alive_s: float = declared(75.0, seconds(1, 3600), "a connection without requests is closed after")
    write_stall_s: float = declared(30.0, seconds(0.1, 3600), "a reader that takes nothing for so long is left")
    propagation_s: float = declared(5.0, seconds(0, 60), "after SIGTERM: not ready, but requests still accepted")
    grace_s: float = declared(60.0, seconds(0, 600), "after that: answers may end, new requests are refused")
    log_level: str = declared("info", choice("debug", "info", "warning", "error"), "least level that is logged")
    log_format: str = declared("auto", choice("auto", "human", "json"), "auto: human on a terminal, else JSON lines")

    @property
    def speaks_tls(self) -> bool:
        """To the servers."""
        return self.tls or any((self.tls_ca, self.tls_cert, self.tls_key))


def broken_gateway_rules(settings: GatewaySettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """As service.setting_rules.broken_rules."""
    if not _listed(settings.target):
        yield ("target",), "must be the address of a server, HOST:PORT"
    for cert, key in (("https_cert", "https_key"), ("tls_cert", "tls_key")):
        if (getattr(settings, cert) is None) != (getattr(settings, key) is None):
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in (cert, key))
            yield (cert, key), f"must be given together with the other of {flags}"
    if not is_loopback(settings.listen) and settings.https_cert is None and not settings.insecure:
        yield (
            ("listen",),
            (
                f"{settings.listen} is open to other machines; give --https-cert and --https-key, or say --insecure "
                "where an ingress or a network policy keeps strangers away"
            ),
        )
    if settings.api_key_file is not None:
        if not is_loopback(settings.listen) and not settings.hosts:
            yield (
                ("hosts",),
                (
                    "must name this gateway's hosts where it lends its key (--api-key-file) beyond the loopback; else "
                    "a page elsewhere whose own name points here could ask with that key"
                ),
            )
        if "*" in settings.cors_origins:
            yield (
                ("cors_origins",),
                "cannot be * where the gateway lends its key (--api-key-file); name the pages that may ask with it",
            )
