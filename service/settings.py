"""Every setting of the server, read once: flags, then `SOLOIST_*` environment variables, then a YAML file.

This is the only file that reads the environment. Each default is written once: here, or in engine.config.EngineConfig
for what belongs to the engine. Spelling is strict: an unknown name is an error that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from service.gateway.settings import GATEWAY_PREFIX, GatewaySettings, broken_gateway_rules
from service.setting_rules import broken_rules
from service.setting_sources import Setting, SettingsError, Sources, declared, settings_of
from service.setting_types import (
    Kind,
    choice,
    choices,
    cluster_name,
    count,
    flag,
    listen_address,
    optional,
    seconds,
    text,
)

if TYPE_CHECKING:
    import argparse

__all__ = [
    "GATEWAY_SETTINGS",
    "SETTINGS",
    "GatewaySettings",
    "Setting",
    "Settings",
    "SettingsError",
    "add_flags",
    "add_gateway_flags",
    "load_gateway_settings",
    "load_settings",
    "state_directory",
]

_OPTIONAL_FILE = optional(text, "none")
_OPTIONAL_NAME = optional(cluster_name, "none")
_ACTIVE_TURNS = optional(count(1, 64), "auto")
_HANG = optional(seconds(1, 86_400), "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration, frozen. Times are seconds, sizes are counts or bytes as the name says."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    listen: str = declared("127.0.0.1:50051", listen_address, "address of the gRPC port, HOST:PORT; port 0 picks one")
    metrics_listen: str | None = declared(
        "127.0.0.1:9400", optional(listen_address, "off"), "address of the Prometheus endpoint, HOST:PORT, or `off`"
    )
    probe_listen: str | None = declared(
        None,
        optional(listen_address, "off"),
        "address of a second port, for kubelet's probes: health and nothing else, without TLS or keys; or `off`",
    )
    tls_cert: str | None = declared(None, _OPTIONAL_FILE, "PEM certificate and chain: the gRPC port speaks TLS")
    tls_key: str | None = declared(None, _OPTIONAL_FILE, "PEM key of the certificate")
    tls_client_ca: str | None = declared(None, _OPTIONAL_FILE, "PEM certificates: only clients that they sign may call")
    keys: str | None = declared(None, _OPTIONAL_FILE, "YAML file of API keys: only who sends one of them may call")
    insecure: bool = declared(False, flag, "listen beyond the loopback with neither TLS nor keys")
    queue_depth: int = declared(16, count(1, 10_000), "turns that may wait; one more is refused")
    max_active_turns: int | None = declared(
        None, _ACTIVE_TURNS, "turns that may share the device, token by token; auto is 2, or slots where there is one"
    )
    max_streams: int = declared(100, count(1, 100), "concurrent streams of one connection")
    host_kv_bytes: int = declared(1 << 30, count(0, 1 << 50), "host memory for the KV cache of idle sessions, bytes")
    prompt_threads: int = declared(2, count(1, 64), "threads that render and tokenise prompts")
    write_stall_s: float = declared(30.0, seconds(0.1, 3600), "a client that reads nothing for so long loses its turn")
    propagation_s: float = declared(5.0, seconds(0, 60), "after SIGTERM: NOT_SERVING, but new turns still accepted")
    grace_s: float = declared(60.0, seconds(0, 600), "after that: running turns may finish, new ones are refused")
    hang_s: float | None = declared(None, _HANG, "an engine without a step for so long is lost; auto: 300, CUDA 60")
    ping_interval_s: float = declared(5.0, seconds(0.05, 3600), "clients may ping no faster than this")
    keepalive_s: float = declared(30.0, seconds(1, 3600), "the server pings a silent connection so often")
    keepalive_timeout_s: float = declared(20.0, seconds(1, 600), "a ping without an answer closes the connection after")
    connection_age_s: float = declared(1800.0, seconds(1, 86_400), "connections are asked to reconnect after")
    connection_age_grace_s: float = declared(600.0, seconds(1, 86_400), "and closed so long after that")
    reflection: bool = declared(True, flag, "serve gRPC reflection")
    open_reflection: bool = declared(False, flag, "reflection needs no API key")
    kubernetes: bool = declared(False, flag, "talk to the cluster's API about the pod that this server runs in")
    pod_name: str | None = declared(None, _OPTIONAL_NAME, "name of that pod, from the downward API")
    pod_namespace: str | None = declared(None, _OPTIONAL_NAME, "its namespace")
    node_name: str | None = declared(None, _OPTIONAL_NAME, "the node that it runs on")
    do_not_disrupt_s: float = declared(
        0.0, seconds(0, 3600), "longest time that answers may hold Karpenter off this pod's node; 0 is never"
    )
    traces: str | None = declared(
        None, optional(text, "off"), "OTLP collector, such as http://localhost:4317, or `off`"
    )
    log_level: str = declared("info", choice("debug", "info", "warning", "error"), "least level that is logged")
    log_format: str = declared("auto", choice("auto", "human", "json"), "auto: human on a terminal, else JSON lines")

    @property
    def active_turns(self) -> int:
        """How many turns share the device: `max_active_turns`, or what `auto` comes to."""
        return min(2, self.engine.slots) if self.max_active_turns is None else self.max_active_turns


_OPTIONAL_COUNT = optional(count(1, 2**31 - 1), "auto")
_ENGINE_KINDS: dict[str, tuple[Kind, str]] = {
    "model": (text, "`embedded`, a GGUF file, a folder in Hugging Face layout, a hub id or s3://BUCKET/PREFIX"),
    "device": (choice("auto", "cpu", "cuda"), "auto takes CUDA where there is one"),
    "precision": (
        choice("auto", "float32", "bfloat16", "float16"),
        "auto is float32 on the CPU and bfloat16 on CUDA",
    ),
    "context": (_OPTIONAL_COUNT, "tokens that a session may hold; auto takes the model's own length, at most 8192"),
    "slots": (count(1, 4096), "sessions whose KV cache stays on the device"),
    "kernels": (
        choice("auto", "plain", "fused", "quantised"),
        "auto takes fused on CUDA in half precision, quantised on the CPU for Q4_0, Q4_1 and Q8_0, else plain torch",
    ),
    "graphs": (choice("on", "off", "strict"), "strict refuses to start without every graph"),
    "graph_context": (
        _OPTIONAL_COUNT,
        "longest context that graphs are captured for, tokens; auto is the whole context",
    ),
    "graph_stages": (
        choices("greedy", "sampled", "truncated", "logprobs"),
        "sampler stages that graphs are captured for; a turn that needs another runs eagerly",
    ),
    "verify_every": (count(0, 2**31 - 1), "every Nth replayed step is also run eagerly and compared; 0 is off"),
    "prefill_chunk": (count(1, 1 << 20), "prompt tokens prefilled at once"),
    "threads": (_OPTIONAL_COUNT, "CPU threads; auto takes the cgroup's quota"),
    "sha256": (optional(text, "none"), "refuse a model file with another digest"),
    "s3_endpoint": (optional(text, "none"), "address of an S3-compatible server, such as http://minio:9000"),
    "model_cache": (
        optional(text, "none"),
        "folder that models of a bucket are downloaded to, and found in at the next start; none streams them",
    ),
    "stream_buffer_bytes": (
        count(1 << 20, 1 << 40),
        "host memory that a stream from a bucket may fill, bytes; a single tensor may need more",
    ),
}


def _all() -> tuple[Setting, ...]:
    of_engine = [
        Setting(f.name, *_ENGINE_KINDS[f.name][:1], f.default, _ENGINE_KINDS[f.name][1], of_engine=True)
        for f in dataclasses.fields(EngineConfig)
        if f.name in _ENGINE_KINDS
    ]
    return (*of_engine, *settings_of(Settings))


SETTINGS: tuple[Setting, ...] = _all()
_SERVER = Sources("soloist", SETTINGS)
_GATEWAY = Sources("soloist gateway", settings_of(GatewaySettings, GATEWAY_PREFIX), GATEWAY_PREFIX)
GATEWAY_SETTINGS = _GATEWAY.settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` one flag per setting, and `--config`. Values stay text until load_settings types them."""
    _SERVER.add_flags(parser)


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """The same for the settings of `soloist gateway`."""
    _GATEWAY.add_flags(parser)


def load_settings(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Merge the three sources into one frozen object.

    Args:
        flags: name -> text, e.g. `vars()` of a namespace that add_flags filled; names that are no settings are left
            alone, since a parser may carry more than settings. None values count as not given.
        environment: os.environ unless given.

    Raises:
        SettingsError: one line for the operator.
    """
    given = _SERVER.merged(flags or {}, os.environ if environment is None else environment, others=(_GATEWAY,))
    of_engine = {setting.name for setting in SETTINGS if setting.of_engine}
    engine = {name: value.typed for name, value in given.items() if name in of_engine}
    service = {name: value.typed for name, value in given.items() if name not in of_engine}
    settings = Settings(engine=EngineConfig(**engine), **service)
    _SERVER.check(given, broken_rules(settings))
    return settings


def load_gateway_settings(
    flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> GatewaySettings:
    """The settings of `soloist gateway`, from flags, `SOLOIST_GATEWAY_*` and a file; else as load_settings."""
    given = _GATEWAY.merged(flags or {}, os.environ if environment is None else environment, others=(_SERVER,))
    settings = GatewaySettings(**{name: value.typed for name, value in given.items()})
    _GATEWAY.check(given, broken_gateway_rules(settings))
    return settings


def state_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the terminal client keeps its history: `soloist` in the XDG state directory, or None without a home."""
    environment = os.environ if environment is None else environment
    chosen = environment.get("XDG_STATE_HOME", "")
    if Path(chosen).is_absolute():
        return Path(chosen) / "soloist"
    try:
        return Path.home() / ".local" / "state" / "soloist"
    except RuntimeError:  # an unknown user without HOME
        return None
