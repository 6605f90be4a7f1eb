"""How busy this server is, in the form that balancers read: xds.data.orca.v3.OrcaLoadReport, in each call's trailers.

gRPC's weighted_round_robin and Envoy weigh pods by it. The message is built here, in a pool of its own: the published
package of these protos is large, and a second copy under the same name in one process is an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from service.events import Load, ServiceEvent, TurnEnd, TurnEnded

TRAILER: Final = "endpoint-load-metrics-bin"
MEAN_OVER_S: Final = 10.0  # rates forget what is much older

_FAILURES: Final = frozenset({TurnEnd.FAILED, TurnEnd.ENGINE_LOST})
_DOUBLE_FIELDS: Final = {"mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
_MAP_FIELDS: Final = {"utilization": 5, "named_metrics": 8}


class Rate:
    """Events a second, recent ones counted more."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def count(self, now_s: float) -> None:
        """One more."""
        self._rate, self._at_s = self.at(now_s) + 1.0 / MEAN_OVER_S, now_s

    def at(self, now_s: float) -> float:
        """As it is now."""
        return self._rate * math.exp((self._at_s - now_s) / MEAN_OVER_S)


class LoadReport:
    """The report of one server. `turns` is how many share its device."""

    def __init__(self, load: Callable[[], Load], turns: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._turns = turns
        self._clock = clock
        self._ended = Rate()
        self._failed = Rate()

    def service_event(self, event: ServiceEvent) -> None:
        """Listener for the service's events."""
        if isinstance(event, TurnEnded):
            self._ended.count(self._clock())
            if event.end in _FAILURES:
                self._failed.count(self._clock())

    def encoded(self) -> bytes:
        """The message as bytes. `application_utilization` is above 1 where turns wait."""
        load, now_s = self._load(), self._clock()
        kv_share = load.kv_tokens_used / load.kv_tokens_total if load.kv_tokens_total else 0.0
        report = _REPORT(
            application_utilization=(load.active_turns + load.queued_turns) / self._turns,
            mem_utilization=kv_share,
            rps_fractional=self._ended.at(now_s),
            eps=self._failed.at(now_s),
            utilization={"kv_cache": kv_share},
            named_metrics={
                "queued_turns": load.queued_turns,
                "active_turns": load.active_turns,
                "predicted_wait_seconds": load.predicted_wait_s,
                "inter_token_seconds": load.inter_token_s,
            },
        )
        return report.SerializeToString()


def _report_class() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(name="orca.proto", package="xds.data.orca.v3", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, number in _DOUBLE_FIELDS.items():
        report.field.add(name=name, number=number, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    for name, number in _MAP_FIELDS.items():
        entry = report.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
        report.field.add(
            name=name,
            number=number,
            type=kinds.TYPE_MESSAGE,
            label=kinds.LABEL_REPEATED,
            type_name=f".xds.data.orca.v3.OrcaLoadReport.{entry.name}",
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))
    return made


_REPORT: Final = _report_class()
