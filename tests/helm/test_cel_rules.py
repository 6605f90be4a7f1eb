"""What Karpenter's definitions say in CEL holds for every manifest, and would be seen where it did not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helm.cel_rules import broken_rules, rules_of
from tests.helm.rendering import NODES_CHART, ci_files, of_kind, render, the


@pytest.mark.parametrize("values", [None, *ci_files(NODES_CHART)], ids=lambda path: path.stem if path else "defaults")
def test_inf_06_every_manifest_keeps_karpenters_rules(values: Path | None) -> None:
    assert not broken_rules(render(chart=NODES_CHART, files=[values] if values else []))


def test_there_are_rules_to_keep() -> None:
    assert len(rules_of("karpenter.sh/v1", "NodePool")) >= 15
    assert len(rules_of("karpenter.k8s.aws/v1", "EC2NodeClass")) >= 40


def profile(spec: Any) -> None:
    spec["instanceProfile"] = "x"


def two_images(spec: Any) -> None:
    spec["amiSelectorTerms"] += [{"id": "ami-1"}]


def other_family(spec: Any) -> None:
    spec["amiFamily"] = "Bottlerocket"


def own_tag(spec: Any) -> None:
    spec["tags"] = {"kubernetes.io/cluster/x": "owned"}


def half_a_schedule(spec: Any) -> None:
    spec["disruption"]["budgets"] = [{"nodes": "0", "schedule": "@daily"}]


def own_label(spec: Any) -> None:
    spec["template"]["metadata"]["labels"]["karpenter.sh/nodepool"] = "x"


def empty_requirement(spec: Any) -> None:
    spec["template"]["spec"]["requirements"][0]["values"] = []


@pytest.mark.parametrize(
    ("kind", "spoil", "says"),
    [
        ("EC2NodeClass", profile, "must specify exactly one of ['role', 'instanceProfile']"),
        ("EC2NodeClass", two_images, "'alias' is mutually exclusive"),
        ("EC2NodeClass", other_family, "if set, amiFamily must be 'AL2023' or 'Custom'"),
        ("EC2NodeClass", own_tag, "$.spec.tags: tag contains a restricted tag matching kubernetes.io/cluster/"),
        ("NodePool", half_a_schedule, "'schedule' must be set with 'duration'"),
        ("NodePool", own_label, 'label "karpenter.sh/nodepool" is restricted'),
        ("NodePool", empty_requirement, "requirements with operator 'In' must have a value defined"),
    ],
)
def test_inf_06_a_broken_rule_is_seen(kind: str, spoil: Callable[[Any], None], says: str) -> None:
    documents = render({"pools": {"onDemand": {"enabled": False}}}, chart=NODES_CHART)
    document = copy.deepcopy(the(of_kind(documents, kind), kind))
    spoil(document["spec"])

    assert says in "\n".join(broken_rules([document]))
