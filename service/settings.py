"""Every setting of the server, read once: flags, then `SOLOIST_*` environment variables, then a YAML file.

This is the only file that reads the environment. Each default is written once: here, or in engine.config.EngineConfig
for what belongs to the engine. Spelling is strict: an unknown name is an error that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engine.config import EngineConfig
from service.setting_rules import broken_rules, is_service_link
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

ENVIRONMENT_PREFIX = "SOLOIST_"
CONFIG = "config"


class SettingsError(Exception):
    """A setting is misspelt, malformed or out of range. One line: where, what is wrong, what is right."""


_OPTIONAL_FILE = optional(text, "none")
_OPTIONAL_NAME = optional(cluster_name, "none")
_DEEPEST_NESTING = 4  # a right file has two levels
_ACTIVE_TURNS = optional(count(1, 64), "auto")
_HANG = optional(seconds(1, 86_400), "auto")


def _setting(default: Any, kind: Kind, help_text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration, frozen. Times are seconds, sizes are counts or bytes as the name says."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    listen: str = _setting("127.0.0.1:50051", listen_address, "address of the gRPC port, HOST:PORT; port 0 picks one")
    metrics_listen: str | None = _setting(
        "127.0.0.1:9400", optional(listen_address, "off"), "address of the Prometheus endpoint, HOST:PORT, or `off`"
    )
    probe_listen: str | None = _setting(
        None,
        optional(listen_address, "off"),
        "address of a second port, for kubelet's probes: health and nothing else, without TLS or keys; or `off`",
    )
    tls_cert: str | None = _setting(None, _OPTIONAL_FILE, "PEM certificate and chain: the gRPC port speaks TLS")
    tls_key: str | None = _setting(None, _OPTIONAL_FILE, "PEM key of the certificate")
    tls_client_ca: str | None = _setting(None, _OPTIONAL_FILE, "PEM certificates: only clients that they sign may call")
    keys: str | None = _setting(None, _OPTIONAL_FILE, "YAML file of API keys: only who sends one of them may call")
    insecure: bool = _setting(False, flag, "listen beyond the loopback with neither TLS nor keys")
    queue_depth: int = _setting(16, count(1, 10_000), "turns that may wait; one more is refused")
    max_active_turns: int | None = _setting(
        None, _ACTIVE_TURNS, "turns that may share the device, token by token; auto is 2, or slots where there is one"
    )
    max_streams: int = _setting(100, count(1, 100), "concurrent streams of one connection")
    host_kv_bytes: int = _setting(1 << 30, count(0, 1 << 50), "host memory for the KV cache of idle sessions, bytes")
    prompt_threads: int = _setting(2, count(1, 64), "threads that render and tokenise prompts")
    write_stall_s: float = _setting(30.0, seconds(0.1, 3600), "a client that reads nothing for so long loses its turn")
    propagation_s: float = _setting(5.0, seconds(0, 60), "after SIGTERM: NOT_SERVING, but new turns still accepted")
    grace_s: float = _setting(60.0, seconds(0, 600), "after that: running turns may finish, new ones are refused")
    hang_s: float | None = _setting(None, _HANG, "an engine without a step for so long is lost; auto: 300, CUDA 60")
    ping_interval_s: float = _setting(5.0, seconds(0.05, 3600), "clients may ping no faster than this")
    keepalive_s: float = _setting(30.0, seconds(1, 3600), "the server pings a silent connection so often")
    keepalive_timeout_s: float = _setting(20.0, seconds(1, 600), "a ping without an answer closes the connection after")
    connection_age_s: float = _setting(1800.0, seconds(1, 86_400), "connections are asked to reconnect after")
    connection_age_grace_s: float = _setting(600.0, seconds(1, 86_400), "and closed so long after that")
    reflection: bool = _setting(True, flag, "serve gRPC reflection")
    open_reflection: bool = _setting(False, flag, "reflection needs no API key")
    kubernetes: bool = _setting(False, flag, "talk to the cluster's API about the pod that this server runs in")
    pod_name: str | None = _setting(None, _OPTIONAL_NAME, "name of that pod, from the downward API")
    pod_namespace: str | None = _setting(None, _OPTIONAL_NAME, "its namespace")
    node_name: str | None = _setting(None, _OPTIONAL_NAME, "the node that it runs on")
    do_not_disrupt_s: float = _setting(
        0.0, seconds(0, 3600), "longest time that answers may hold Karpenter off this pod's node; 0 is never"
    )
    traces: str | None = _setting(
        None, optional(text, "off"), "OTLP collector, such as http://localhost:4317, or `off`"
    )
    log_level: str = _setting("info", choice("debug", "info", "warning", "error"), "least level that is logged")
    log_format: str = _setting("auto", choice("auto", "human", "json"), "auto: human on a terminal, else JSON lines")

    @property
    def active_turns(self) -> int:
        """How many turns share the device: `max_active_turns`, or what `auto` comes to."""
        return min(2, self.engine.slots) if self.max_active_turns is None else self.max_active_turns


_OPTIONAL_COUNT = optional(count(1, 2**31 - 1), "auto")
_ENGINE_KINDS: dict[str, tuple[Kind, str]] = {
    "model": (text, "`embedded`, a GGUF file, a folder in Hugging Face layout or a hub id"),
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
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as data, enough for `--help`, a table in the docs and a chart's schema.

    Attributes:
        name: in YAML; `flag` and `variable` are its other two spellings.
        default: the typed default.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    of_engine: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def shown_default(self) -> str:
        """The default as an operator would write it."""
        return self.kind.show(self.default)


def _declared() -> tuple[Setting, ...]:
    of_engine = [
        Setting(f.name, *_ENGINE_KINDS[f.name][:1], f.default, _ENGINE_KINDS[f.name][1], of_engine=True)
        for f in dataclasses.fields(EngineConfig)
        if f.name in _ENGINE_KINDS
    ]
    of_service = [
        Setting(f.name, f.metadata["kind"], f.default, f.metadata["help"], of_engine=False)
        for f in dataclasses.fields(Settings)
        if f.name != "engine"
    ]
    return tuple(of_engine + of_service)


SETTINGS: tuple[Setting, ...] = _declared()
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` one flag per setting, and `--config`. Values stay text until load_settings types them."""
    parser.add_argument("--config", metavar="FILE", default=argparse_unset(), help="YAML file with these settings")
    for setting in SETTINGS:
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            metavar=setting.kind.metavar,
            nargs=None if setting.kind.alone is None else "?",
            const=setting.kind.alone,
            default=argparse_unset(),
            help=f"{setting.help} (default: {setting.shown_default}; {setting.variable})".replace("%", "%%"),
        )


def argparse_unset() -> Any:
    """argparse's own mark for a flag that was not given: it leaves no attribute behind."""
    import argparse

    return argparse.SUPPRESS


def load_settings(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Merge the three sources into one frozen object.

    Args:
        flags: name -> text, e.g. `vars()` of a namespace that add_flags filled; names that are no settings are left
            alone, since a parser may carry more than settings. None values count as not given.
        environment: os.environ unless given.

    Raises:
        SettingsError: one line for the operator.
    """
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    from_environment = _read_environment(environment)
    config = given.get(CONFIG) or from_environment.get(CONFIG, (None, ""))[1]
    merged: dict[str, tuple[str, str]] = {}
    if config:
        merged.update(_read_file(Path(config)))
    merged.update({name: pair for name, pair in from_environment.items() if name != CONFIG})
    merged.update({name: (_BY_NAME[name].flag, str(value)) for name, value in given.items() if name in _BY_NAME})

    typed = {name: _typed(_BY_NAME[name], source, value) for name, (source, value) in merged.items()}
    engine = {name: value for name, value in typed.items() if _BY_NAME[name].of_engine}
    service = {name: value for name, value in typed.items() if not _BY_NAME[name].of_engine}
    settings = Settings(engine=EngineConfig(**engine), **service)
    for names, wrong in broken_rules(settings):
        source = next((merged[name][0] for name in names if name in merged), _BY_NAME[names[0]].flag)
        raise SettingsError(f"{source}: {wrong}")
    return settings


def _read_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    known = {setting.variable: setting.name for setting in SETTINGS} | {ENVIRONMENT_PREFIX + "CONFIG": CONFIG}
    found: dict[str, tuple[str, str]] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in known:
            if is_service_link(variable, value):
                raise SettingsError(
                    f"{variable}={value}: injected by Kubernetes for a Service named `soloist...`, and no setting; "
                    "set `enableServiceLinks: false` in the pod"
                )
            raise SettingsError(f"{variable}: unknown environment variable{_nearest(variable, list(known))}")
        found[known[variable]] = (variable, value)
    return found


def _read_file(path: Path) -> dict[str, tuple[str, str]]:
    """Names to (source, text). Scalars stay as written: YAML 1.1 would turn `on`, `y` or `1_0` into other things."""
    try:
        text = path.read_text(encoding="utf-8")
        _check_depth(path, text)
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--config {path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"--config {path}: {' '.join(str(error).split())}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{path}: must be a mapping of setting names to values")
    found: dict[str, tuple[str, str]] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{path}: a setting's name must be plain text")
        source = f"{path}:{key.start_mark.line + 1}: {key.value}"
        if key.value not in _BY_NAME:
            near = _nearest(str(key.value), list(_BY_NAME))
            raise SettingsError(f"{path}:{key.start_mark.line + 1}: unknown setting `{key.value}`{near}")
        if key.value in found:
            raise SettingsError(f"{source}: is set twice; keep one")
        found[key.value] = (source, _scalar(_BY_NAME[key.value], source, value))
    return found


def _check_depth(path: Path, text: str) -> None:
    """Refuse deep nesting before `compose`, which recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_NESTING:
            raise SettingsError(f"--config {path}: is nested deeper than settings can be")


def _scalar(setting: Setting, source: str, node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    is_list = setting.kind.many and isinstance(node, yaml.SequenceNode)
    if is_list and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(str(item.value) for item in node.value)
    raise SettingsError(f"{source}: must be a single value{', or a list of them' if setting.kind.many else ''}")


def _typed(setting: Setting, source: str, value: str) -> Any:
    try:
        return setting.kind.parse(value)
    except ValueError as error:
        raise SettingsError(f"{source}: {error}; got {value!r}") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


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
