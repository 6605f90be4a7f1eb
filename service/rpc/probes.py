"""A second port for those who cannot show what the first one asks for: kubelet's probes know neither TLS nor keys.

Whoever reaches it learns whether this server is well, and can do nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2_grpc

from service.rpc.health import HealthServicer
from service.rpc.server import ListenError, check_port

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A request is one service's name. Connections of probes are short; what stays open is asked to leave.
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_metadata_size", 4096),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
)


@dataclass(frozen=True, slots=True)
class ProbePort:
    """The server of one port, built and not started.

    Attributes:
        address: HOST:PORT as bound, port 0 resolved.
    """

    server: grpc.aio.Server
    address: str


def build_probe_port(listen: str, health: HealthServicer) -> ProbePort:
    """Take the port. ListenError, in one line, if it cannot be had."""
    check_port(listen)
    server = grpc.aio.server(options=_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:  # taken since `check_port`
        raise ListenError(f"cannot listen on {listen}") from None
    return ProbePort(server, f"{listen.rpartition(':')[0]}:{port}")
