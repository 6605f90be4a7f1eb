"""What is to become of a node, read from its object. Pure.

Karpenter marks a node twice. For its own ends (a cheaper node, a newer image) it first taints the node, waits for the
replacement, and takes the taint back where that does not come. Then, or at once where a spot node is taken away, it
deletes the node; the object stays, tainted, until the pods are gone. The first may come minutes before the end, and for
nothing: a server that stopped serving then would serve nobody while the replacement boots. So at the first a server
gets out of the way, and no more. The second is final and comes before the pods are evicted: at that it hands over.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

DISRUPTED: Final = "karpenter.sh/disrupted"
NO_SCHEDULE: Final = "NoSchedule"


class Fate(Enum):
    """STAYS. TOLD_TO_GO: tainted; do not stand in the way. GOES: tainted and deleted; hand over."""

    STAYS = "stays"
    TOLD_TO_GO = "told_to_go"
    GOES = "goes"


def fate(node: Mapping[str, Any]) -> Fate:
    """Of a Node as the API has it, JSON."""
    taints = node.get("spec", {}).get("taints") or ()
    if not any(taint.get("key") == DISRUPTED and taint.get("effect") == NO_SCHEDULE for taint in taints):
        return Fate.STAYS
    return Fate.GOES if node.get("metadata", {}).get("deletionTimestamp") else Fate.TOLD_TO_GO
