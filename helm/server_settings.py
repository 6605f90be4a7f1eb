"""Settings of both programs as a part of the chart: their lines in values.yaml, their schema, how long a stop takes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.ops.drain import DrainTimes
from service.settings import GATEWAY_SETTINGS, SETTINGS, Setting


@dataclass(frozen=True, slots=True)
class Part:
    """Settings of one program in the values.

    Attributes:
        path: where they stand in the values.
        above: the comment above them.
        settings: all that the program has.
        of_the_chart: those that depend on the pod, which templates set out of other values.
    """

    path: tuple[str, ...]
    above: str
    settings: Sequence[Setting]
    of_the_chart: frozenset[str]

    @property
    def offered(self) -> list[Setting]:
        """What a user of the chart may set, in the program's order."""
        return [setting for setting in self.settings if setting.name not in self.of_the_chart]

    def values_lines(self) -> str:
        """Their part of values.yaml, each with the program's default."""
        indent = "  " * (len(self.path) - 1)
        lines = [f"# {self.above}", f"{self.path[-1]}:"]
        for setting in self.offered:
            lines += [f"  # {setting.help}", f"  {setting.name}: {_yaml(_default(setting))}"]
        return "".join(f"{indent}{line}\n" for line in lines)

    def schema(self) -> dict[str, Any]:
        """Their JSON Schema.

        Raises:
            SystemExit: a kind of setting has none, and everything would be taken.
        """
        for setting in self.offered:
            if not setting.kind.schema:
                raise SystemExit(
                    f"{setting.flag}: its kind {setting.kind.metavar} has no schema (service.setting_types)"
                )
        return {"type": "object", "properties": {setting.name: dict(setting.kind.schema) for setting in self.offered}}


SERVER = Part(
    ("settings",),
    "Settings of the server. What depends on the pod (ports, TLS, keys, model) is not here: the chart sets it.",
    SETTINGS,
    frozenset(
        (
            *("model", "device", "sha256", "s3_endpoint", "model_cache"),
            *("listen", "metrics_listen", "probe_listen"),
            *("tls_cert", "tls_key", "tls_client_ca", "keys", "insecure"),
            *("kubernetes", "pod_name", "pod_namespace", "node_name"),
        )
    ),
)
GATEWAY = Part(
    ("gateway", "settings"),
    "Settings of the gateway. What depends on the pod (ports, TLS, the servers) is not here: the chart sets it.",
    GATEWAY_SETTINGS,
    frozenset(
        (
            *("target", "listen", "insecure", "https_cert", "https_key"),
            *("tls", "tls_ca", "tls_cert", "tls_key", "api_key_file"),
        )
    ),
)
PARTS = (SERVER, GATEWAY)


def stop_seconds() -> int:
    """The longest that the server's stop takes beside propagation and grace, in whole seconds."""
    return math.ceil(DrainTimes(propagation_s=0, grace_s=0).total_s)


def _default(setting: Setting) -> Any:
    """As typed YAML: a number stays one, and `auto`, `off` and `none` stand for the absent value."""
    if setting.default is None or isinstance(setting.default, str):
        return setting.shown_default
    if isinstance(setting.default, tuple):
        return list(setting.default)
    if isinstance(setting.default, float) and setting.default.is_integer():
        return int(setting.default)
    return setting.default


def _yaml(value: Any) -> str:
    """Text in quotes always: `on` and `off` are no text in YAML 1.1."""
    return json.dumps(value)
