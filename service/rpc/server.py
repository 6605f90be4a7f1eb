"""The gRPC server: its services, its options with their reasons, its port."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from service.rpc.access import Access
from service.rpc.calls import CallInterceptor, Trailers
from service.rpc.health import SERVICE_NAME as HEALTH_NAME
from service.rpc.health import HealthServicer
from service.rpc.limits import MAX_METADATA_BYTES, TRANSPORT_REQUEST_BYTES
from service.rpc.servicer import SERVICE_NAME as CHAT_NAME
from service.rpc.servicer import ChatServicer
from service.rpc.tls import TlsFiles, server_credentials
from soloist.v1 import chat_pb2_grpc

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class ListenError(Exception):
    """The gRPC port cannot be opened."""


@dataclass(frozen=True, slots=True)
class Transport:
    """What the operator sets of the transport; see service.settings. Times are seconds."""

    listen: str
    max_streams: int
    ping_interval_s: float
    keepalive_s: float
    keepalive_timeout_s: float
    connection_age_s: float
    connection_age_grace_s: float
    reflection: bool
    write_stall_s: float
    tls: TlsFiles | None = None


def server_options(transport: Transport) -> tuple[tuple[str, Any], ...]:
    """gRPC channel arguments. Names that gRPC does not know are ignored in silence, so tests check effects."""
    return (
        # Without it a second server on the same port would get half the connections instead of an error.
        ("grpc.so_reuseport", 0),
        # A turn may wait in the queue for minutes while its client pings. `min_recv_ping_interval_without_data_ms`, the
        # name that is often copied, is ignored in this form, and the connection dies after three pings.
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(transport.ping_interval_s)),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _ms(transport.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(transport.keepalive_timeout_s)),
        ("grpc.http2.max_pings_without_data", 0),
        # One connection cannot flood the server with streams, nor hold on to one pod for good.
        ("grpc.max_concurrent_streams", transport.max_streams),
        ("grpc.max_connection_age_ms", _ms(transport.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _ms(transport.connection_age_grace_s)),
        ("grpc.max_receive_message_length", TRANSPORT_REQUEST_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES + 1024),
        # Bytes that one stream may have written and not sent. gRPC completes a write once they fit in here.
        ("grpc.http2.write_buffer_size", 16 * 1024),
    )


@dataclass(slots=True)
class Edge:
    """A server that is built, not started.

    Attributes:
        address: HOST:PORT as bound, port 0 resolved.
    """

    server: grpc.aio.Server
    calls: CallInterceptor
    address: str


def build_server(
    transport: Transport,
    access: Access,
    chat: ChatServicer,
    health: HealthServicer,
    trailers: Callable[[], Trailers] = lambda: (),
) -> Edge:
    """Make the server and take its port. ListenError or TlsError, in one line, if it cannot be had."""
    check_port(transport.listen)
    calls = CallInterceptor(transport.write_stall_s, access, trailers)
    server = grpc.aio.server(interceptors=(calls,), options=server_options(transport))
    chat_pb2_grpc.add_ChatServiceServicer_to_server(chat, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if transport.reflection:
        _add_reflection(server)
    try:
        if transport.tls is None:
            port = server.add_insecure_port(transport.listen)
        else:
            port = server.add_secure_port(transport.listen, server_credentials(transport.tls))
    except RuntimeError:  # taken since `check_port`; gRPC has said more on standard error
        raise ListenError(f"cannot listen on {transport.listen}") from None
    return Edge(server, calls, f"{transport.listen.rpartition(':')[0]}:{port}")


def check_port(listen: str) -> None:
    """ListenError if the port cannot be had. Before gRPC tries, which says so in lines of its own on standard error."""
    host, _, port = listen.rpartition(":")
    try:
        for family, kind, protocol, _name, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {listen}: {error.strerror}") from None


def _add_reflection(server: grpc.aio.Server) -> None:
    """Reflection under both names: the messages of v1 and v1alpha are the same on the wire."""
    servicer = reflection.aio.ReflectionServicer((CHAT_NAME, HEALTH_NAME, reflection.SERVICE_NAME, REFLECTION_V1))
    add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": method}),)
    )


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
