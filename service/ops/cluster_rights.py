"""What this server may do in its cluster, and why: the least that its observers need. The chart grants exactly this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb of RBAC. `of_cluster`: the resource lies in no namespace, so a ClusterRole grants it."""

    group: str
    resource: str
    verb: str
    of_cluster: bool
    why: str


RIGHTS: Final = (
    Right("", "nodes", "watch", True, "the own node's taint, which says ahead of SIGTERM that it goes"),
    Right("", "pods", "patch", False, "two annotations of the own pod: how dear it is, and that somebody listens"),
    Right("events.k8s.io", "events", "create", False, "what operators should see in `kubectl describe pod`"),
)
