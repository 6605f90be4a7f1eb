"""A node's two marks: it is told to go, and it goes."""

from __future__ import annotations

from typing import Any

import pytest

from service.ops.node_fate import Fate, fate

TAINT = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule", "value": ""}


@pytest.mark.parametrize(
    ("node", "becomes"),
    [
        ({}, Fate.STAYS),
        ({"metadata": {}, "spec": {}}, Fate.STAYS),
        ({"spec": {"taints": None}}, Fate.STAYS),
        ({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}, Fate.STAYS),
        ({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoExecute"}]}}, Fate.STAYS),
        ({"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoSchedule"}]}}, Fate.STAYS),
        ({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}, "spec": {}}, Fate.STAYS),
        ({"metadata": {}, "spec": {"taints": [{"key": "x", "effect": "NoExecute"}, TAINT]}}, Fate.TOLD_TO_GO),
        ({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}, "spec": {"taints": [TAINT]}}, Fate.GOES),
    ],
)
def test_inf_01_what_becomes_of_a_node(node: dict[str, Any], becomes: Fate) -> None:
    assert fate(node) is becomes
