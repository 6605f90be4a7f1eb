"""The policy that bounds what a server may change: its expressions evaluated as the cluster does, by another CEL."""

from __future__ import annotations

import copy
import functools
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel

from service.ops.pod_marks import DELETION_COST, DO_NOT_DISRUPT
from tests.helm.leaves import over
from tests.helm.rendering import Document, of_kind, render, server_pod, the

ON: dict[str, Any] = {"kubernetes": {"admissionPolicy": True}}
POD_NAME = "authentication.kubernetes.io/pod-name"


def pod(name: str = "soloist-a", **metadata: Any) -> Document:
    return {
        "metadata": {"name": name, "namespace": "soloist", "labels": {"a": "b"}, **metadata},
        "spec": {"containers": [{"name": "soloist", "image": "soloist:1"}]},
    }


def of_account(account: str = "soloist", pod_name: str | None = "soloist-a") -> Document:
    """Who asks: `userInfo` of an account's token, which is a pod's own unless there is no `pod_name`."""
    extra = {"extra": {POD_NAME: [pod_name]}} if pod_name else {}
    return {"username": f"system:serviceaccount:soloist:{account}", **extra}


def refusals(old: Document, new: Document, who: Document, values: dict[str, Any] | None = None) -> list[str]:
    """What the policy says against this change; nothing where it lets it pass, or is not asked."""
    spec = the(render(over(ON, values or {})), "ValidatingAdmissionPolicy")["spec"]
    given = {"object": new, "oldObject": old, "request": {"userInfo": who}}
    if not all(_holds(condition["expression"], given) for condition in spec["matchConditions"]):
        return []
    variables = {v["name"]: _value(v["expression"], given) for v in spec["variables"]}
    return [
        v["message"]
        for v in spec["validations"]
        if not _program(v["expression"]).evaluate({**_cel(given), "variables": celpy.celtypes.MapType(variables)})
    ]


def _holds(expression: str, given: Document) -> bool:
    return bool(_value(expression, given))


def _value(expression: str, given: Document) -> Any:
    return _program(expression).evaluate(_cel(given))


def _cel(given: Document) -> dict[str, Any]:
    return {name: json_to_cel(value) for name, value in given.items()}


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def marked(**annotations: str) -> Document:
    return pod(annotations={"kept": "as it is", **annotations})


MARKS = {DELETION_COST: "100", DO_NOT_DISRUPT: "60s"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pod(), pod(annotations=MARKS)),
        (pod(annotations=MARKS), pod()),
        (pod(annotations=MARKS), pod(annotations={DELETION_COST: "0"})),
        (marked(), marked(**MARKS)),
        (marked(**MARKS), marked()),
        (pod(), pod()),
    ],
)
def test_promise_20_a_server_sets_and_removes_its_two_annotations(old: Document, new: Document) -> None:
    assert refusals(old, new, of_account()) == []


def spoilt(path: str, value: Any) -> Document:
    changed = copy.deepcopy(marked())
    place: Any = changed
    *way, last = path.split("/")
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = value
    return changed


NOTHING_ELSE = "a server may change nothing of its pod but annotations"


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (spoilt("spec/containers/0/image", "other"), NOTHING_ELSE),
        (spoilt("spec/activeDeadlineSeconds", 1), NOTHING_ELSE),
        (spoilt("metadata/labels", {"a": "c"}), NOTHING_ELSE),
        (spoilt("metadata/labels/c", "d"), NOTHING_ELSE),
        (spoilt("metadata/finalizers", ["a/b"]), NOTHING_ELSE),
        (spoilt("metadata/ownerReferences", []), NOTHING_ELSE),
        (marked(other="x"), "of its annotations a server may change two"),
        (spoilt("metadata/annotations/kept", "no"), "of its annotations a server may change two"),
        (pod(), "of its annotations a server may change two"),
    ],
)
def test_promise_20_a_server_changes_nothing_else_of_its_pod(new: Document, says: str) -> None:
    [refusal] = refusals(marked(), new, of_account())
    assert refusal.startswith(says)


def test_promise_20_a_server_changes_no_other_pod() -> None:
    old, new = pod("soloist-b"), pod("soloist-b", annotations=MARKS)
    for who in (of_account(), of_account(pod_name=None), {**of_account(pod_name=None), "extra": {"a": ["soloist-b"]}}):
        assert refusals(old, new, who) == ["a server may change its own pod only"]


def test_others_are_none_of_its_business() -> None:
    old, new = pod(), pod(labels={"x": "y"})
    assert refusals(old, new, {"username": "admin"}) == []
    assert refusals(old, new, of_account("other")) == []
    # It follows the account that pods have.
    other = {"serviceAccount": {"name": "other"}}
    assert server_pod(render(over(ON, other)))["serviceAccountName"] == "other"
    assert refusals(old, new, of_account("other"), other) == [NOTHING_ELSE]


def test_it_is_made_where_it_is_wanted_and_bound_to_the_namespace() -> None:
    assert not of_kind(render(), "ValidatingAdmissionPolicy")
    documents = render(ON)
    policy, binding = the(documents, "ValidatingAdmissionPolicy"), the(documents, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]
    selector = binding["spec"]["matchResources"]["namespaceSelector"]
    assert selector == {"matchLabels": {"kubernetes.io/metadata.name": "soloist"}}
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"], policy["spec"]["failurePolicy"]) == (["pods"], ["UPDATE"], "Fail")
