"""The rights that the chart grants are those of the server's own table, where the server asks for any at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.ops.cluster_rights import RIGHTS
from tests.helm.rendering import NAMESPACE, Document, of_kind, render, server, server_pod, the

Granted = tuple[str, str, str, bool]


def granted(documents: list[Document]) -> Iterator[Granted]:
    """(API group, resource, verb, of the cluster) of every rule."""
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(documents, kind):
            for rule in role["rules"]:
                assert set(rule) == {"apiGroups", "resources", "verbs"}
                yield from (
                    (group, resource, verb, kind == "ClusterRole")
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                )


def test_promise_20_the_chart_grants_what_the_server_asks_for_and_nothing_else() -> None:
    asked_for = [(right.group, right.resource, right.verb, right.of_cluster) for right in RIGHTS]

    assert sorted(granted(render({"kubernetes": {"enabled": True}}))) == sorted(asked_for)


def test_rights_go_to_the_servers_account_and_to_no_other() -> None:
    documents = render({"kubernetes": {"enabled": True}})
    account = the(documents, "ServiceAccount")["metadata"]["name"]

    bindings = [*of_kind(documents, "RoleBinding"), *of_kind(documents, "ClusterRoleBinding")]
    assert len(bindings) == 2
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert server_pod(documents)["serviceAccountName"] == account


@pytest.mark.parametrize("enabled", [True, False])
def test_promise_20_a_pod_has_a_token_only_where_it_talks_to_the_cluster(enabled: bool) -> None:
    documents = render({"kubernetes": {"enabled": enabled}})

    assert server_pod(documents)["automountServiceAccountToken"] is enabled
    assert bool(list(granted(documents))) is enabled
    names = {variable["name"]: variable for variable in server(documents).get("env", [])}
    assert ("SOLOIST_POD_NAME" in names) is enabled
    if enabled:
        fields = {
            name: names[name]["valueFrom"]["fieldRef"]["fieldPath"] for name in names if "fieldRef" in str(names[name])
        }
        assert {
            "SOLOIST_POD_NAME": "metadata.name",
            "SOLOIST_POD_NAMESPACE": "metadata.namespace",
            "SOLOIST_NODE_NAME": "spec.nodeName",
        }.items() <= fields.items()
