"""The settings of each part, out of all settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.keys import KeyFile
from service.rpc.access import Access
from service.rpc.server import Transport
from service.rpc.tls import TlsFiles
from service.scheduler import Limits
from service.settings import Settings

if TYPE_CHECKING:
    from service.ops.cluster import Asked, Cluster
    from service.ops.traces import Traces

HANG_S: Final = 300.0  # a prefill chunk of a large model on few CPU cores takes its time
HANG_CUDA_S: Final = 60.0  # no step takes a second there, but a kernel may be compiled at its first use


class PartAbsentError(Exception):
    """A part is asked for that this installation or place does not have. One line."""


def hang_s(settings: Settings, device: str) -> float:
    """How long the engine on this device may go without a step."""
    if settings.hang_s is not None:
        return settings.hang_s
    return HANG_S if device == "cpu" else HANG_CUDA_S


def limits(settings: Settings) -> Limits:
    """Of the worker."""
    return Limits(
        queue=settings.queue_depth,
        active_turns=settings.active_turns,
        slots=settings.engine.slots,
        reader_patience_s=settings.write_stall_s,
        host_kv_bytes=settings.host_kv_bytes,
    )


def transport(settings: Settings) -> Transport:
    """Of the gRPC server."""
    return Transport(
        listen=settings.listen,
        max_streams=settings.max_streams,
        ping_interval_s=settings.ping_interval_s,
        keepalive_s=settings.keepalive_s,
        keepalive_timeout_s=settings.keepalive_timeout_s,
        connection_age_s=settings.connection_age_s,
        connection_age_grace_s=settings.connection_age_grace_s,
        reflection=settings.reflection,
        write_stall_s=settings.write_stall_s,
        tls=_tls(settings),
    )


def _tls(settings: Settings) -> TlsFiles | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    client_ca = None if settings.tls_client_ca is None else Path(settings.tls_client_ca)
    return TlsFiles(Path(settings.tls_cert), Path(settings.tls_key), client_ca)


def access(settings: Settings) -> Access:
    """Who may call. Reads the keys: KeyFileError."""
    keys = None if settings.keys is None else KeyFile(Path(settings.keys))
    return Access(keys, open_reflection=settings.open_reflection)


def traces(settings: Settings, version: str) -> Traces | None:
    """Where turns are traced to, or None. PartAbsentError without the optional packages."""
    if settings.traces is None:
        return None
    try:
        from service.ops.traces import Traces
    except ImportError as error:
        raise PartAbsentError(f"--traces needs OpenTelemetry: pip install 'soloist[otel]' ({error.name})") from None
    return Traces(settings.traces, version)


def cluster(settings: Settings, on_goes: Callable[[], None], asked: Asked) -> Cluster | None:
    """The pod's part in its cluster, or None. PartAbsentError outside of a pod, or without the optional package."""
    if not settings.kubernetes:
        return None
    try:
        from service.ops.cluster import Cluster
        from service.ops.kubernetes import KubernetesApi, NoClusterError, PodName, in_cluster
    except ImportError as error:
        raise PartAbsentError(
            f"--kubernetes needs the cluster's client: pip install 'soloist[kubernetes]' ({error.name})"
        ) from None
    pod = PodName(settings.pod_name or "", settings.pod_namespace or "", settings.node_name or "")
    try:
        api = KubernetesApi(in_cluster(), pod)
    except NoClusterError as error:
        raise PartAbsentError(str(error)) from None
    return Cluster(api, settings.do_not_disrupt_s, on_goes, asked)
