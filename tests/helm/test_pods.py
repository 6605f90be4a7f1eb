"""What runs in the cluster, and with which rights: probes, times, identity, images, nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.ops.drain import DrainTimes
from tests.helm.examples import documents_of, each_example, everything
from tests.helm.leaves import errors, over
from tests.helm.pod_security import violations
from tests.helm.rendering import (
    RenderError,
    of_kind,
    pod_specs,
    render,
    server,
    server_pod,
    the,
)

DIGEST = "sha256:" + "a" * 64


@each_example
def test_k8s_01_a_pod_has_600_s_to_load_and_liveness_waits_for_no_time(values: Path | None) -> None:
    documents = documents_of(values)
    container = server(documents)
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    if "nvidia.com/gpu" in container["resources"]["limits"]:
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    # While it loads the start-up probe alone is asked, so liveness needs no delay, and a slow load kills nothing.
    assert "initialDelaySeconds" not in {**startup, **liveness}
    deadline = the(documents, "Deployment", "soloist")["spec"]["progressDeadlineSeconds"]
    assert deadline > startup["periodSeconds"] * startup["failureThreshold"]


@each_example
def test_three_probes_ask_three_questions_on_the_port_without_tls(values: Path | None) -> None:
    container = server(documents_of(values))
    assert {"name": "probes", "containerPort": 9401} in container["ports"]
    for question in ("startup", "readiness", "liveness"):
        assert container[f"{question}Probe"]["grpc"] == {"port": 9401, "service": question}
        # A look must be over when the next one comes.
        assert container[f"{question}Probe"]["timeoutSeconds"] <= container[f"{question}Probe"]["periodSeconds"]


@pytest.mark.parametrize(("budget", "period", "threshold"), [(600, 5, 120), (601, 5, 121), (900, 7, 129)])
def test_the_startup_budget_is_never_cut_short(budget: int, period: int, threshold: int) -> None:
    probe = server(render({"probes": {"startup": {"budgetSeconds": budget, "periodSeconds": period}}}))["startupProbe"]
    assert probe["failureThreshold"] == threshold


@each_example
def test_promise_12_what_a_pod_needs_to_leave_fits_its_grace_and_a_spot_notice(values: Path | None) -> None:
    documents = documents_of(values)
    for name in [
        d["metadata"]["name"] for d in of_kind(documents, "Deployment") if "gateway" not in d["metadata"]["name"]
    ]:
        pod = server_pod(documents, name)
        pre_stop_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        times = DrainTimes(propagation_s=5, grace_s=60)
        assert pre_stop_s + times.propagation_s + times.grace_s + 5 <= pod["terminationGracePeriodSeconds"] <= 110
        # And the server's own account, with all that it may wait for.
        assert pre_stop_s + times.total_s <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("settings", "pre_stop_s"), [({"grace_s": 0.5, "propagation_s": 0.2}, 5), ({"grace_s": 30, "propagation_s": 20}, 9)]
)
def test_promise_12_the_grace_period_follows_the_settings(settings: dict[str, float], pre_stop_s: int) -> None:
    pod = server_pod(render({"settings": settings, "shutdown": {"preStopSeconds": pre_stop_s}}))
    needed_s = pre_stop_s + DrainTimes(**settings).total_s
    assert pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == pre_stop_s
    assert needed_s <= pod["terminationGracePeriodSeconds"] < needed_s + 2


def test_promise_12_longer_graces_are_for_nodes_that_stay() -> None:
    long = {"settings": {"grace_s": 600}}
    for capacity in ("spot", "spot-preferred"):
        with pytest.raises(RenderError, match="A pod on a spot node has 110 s to leave"):
            render(over(long, {"placement": {"capacity": capacity}}))
    assert (
        server_pod(render(over(long, {"placement": {"capacity": "on-demand"}})))["terminationGracePeriodSeconds"] > 600
    )


@each_example
def test_k8s_09_a_pod_goes_on_for_5_s_and_more_after_it_left_the_endpoints(values: Path | None) -> None:
    assert server(documents_of(values))["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5
    assert errors({"shutdown": {"preStopSeconds": 4}})


@each_example
def test_promise_20_every_pod_is_restricted(values: Path | None) -> None:
    found = {name: violations(pod) for name, _, pod in pod_specs(documents_of(values))}
    assert found
    assert not any(found.values()), found


def test_promise_20_every_pod_is_restricted_whatever_is_turned_on() -> None:
    pods = list(pod_specs(render(everything())))
    assert not any(violations(pod) for _, _, pod in pods)
    assert len(pods) == 4, "server, floor, gateway, test"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"source": "image", "image": {"reference": "a/b:1"}}, "image"),
        ({"source": "hostPath", "hostPath": {"path": "/m"}}, "hostPath"),
    ],
)
def test_promise_20_two_sources_of_weights_break_it_and_say_so(source: dict[str, Any], kind: str) -> None:
    documents = render({"model": source})
    assert violations(server_pod(documents)) == [f"volume models: type {kind}"]
    comment = next(v.comment for v in _comments() if v.path == ("model", source["source"]))
    assert "Pod Security" in comment


def _comments() -> list[Any]:
    from helm import values_comments
    from tests.helm.rendering import CHART

    return values_comments.read((CHART / "values.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("hostNetwork", True), ("volumes", [{"name": "a", "hostPath": {"path": "/"}}]), ("securityContext", {})],
)
def test_promise_20_the_check_sees_what_it_is_for(field: str, value: Any) -> None:
    assert violations({**server_pod(render()), field: value})


@each_example
def test_promise_20_roots_are_read_only_and_one_folder_is_writable(values: Path | None) -> None:
    for name, _, pod in pod_specs(documents_of(values)):
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable - {"/cache", "/dev/shm"} == {"/tmp"}, name


@each_example
def test_promise_20_no_token_unless_the_server_needs_it(values: Path | None) -> None:
    documents = documents_of(values)
    needed = bool(of_kind(documents, "Role"))
    for name, _, pod in pod_specs(documents):
        is_server = name in ("Deployment/soloist", "Deployment/soloist-floor")
        assert pod["automountServiceAccountToken"] is (needed and is_server), name
    assert the(documents, "ServiceAccount")["automountServiceAccountToken"] is False


def test_promise_20_the_servers_account_is_the_servers_alone() -> None:
    """EKS gives the role of an account, and so the bucket, to every pod that has it."""
    accounts = {name: pod.get("serviceAccountName") for name, _, pod in pod_specs(render(everything()))}
    assert accounts == {
        "Deployment/soloist": "soloist",
        "Deployment/soloist-floor": "soloist",
        "Deployment/soloist-gateway": None,
        "Pod/soloist-test": None,
    }


@each_example
def test_k8s_07_nothing_needs_a_home_or_a_name(values: Path | None) -> None:
    """Whatever uid runs: home and caches lie below the one writable folder."""
    for _, _, pod in pod_specs(documents_of(values)):
        [container] = pod["containers"]
        set_to = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        for variable in ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
            assert set_to[variable].startswith("/tmp")


def test_k8s_07_any_user_may_run() -> None:
    for _, _, pod in pod_specs(
        render({"podSecurity": {"runAsUser": 12345, "runAsGroup": 54321}, "gateway": {"enabled": True}})
    ):
        context = pod["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (12345, 54321, 54321)
    assert errors({"podSecurity": {"runAsUser": 0}})


@each_example
def test_k8s_08_the_quota_is_what_was_asked_for(values: Path | None) -> None:
    resources = server(documents_of(values))["resources"]
    assert resources["requests"] == resources["limits"]
    assert "cpu" in resources["limits"]


@each_example
def test_variables_of_services_are_not_injected(values: Path | None) -> None:
    for name, _, pod in pod_specs(documents_of(values)):
        assert pod["enableServiceLinks"] is False, name


def test_promise_21_images_by_digest_and_never_the_latest() -> None:
    for _, _, pod in pod_specs(render({"image": {"repository": "r.example/soloist", "digest": DIGEST, "tag": "1"}})):
        assert [c["image"] for c in pod["containers"]] == [f"r.example/soloist@{DIGEST}"]
    assert errors({"image": {"tag": "latest"}})
    assert errors({"model": {"image": {"reference": "a/model:latest"}}})
    assert errors({"model": {"image": {"reference": "a/model"}}})
    assert not errors({"model": {"image": {"reference": f"a:5000/model@{DIGEST}"}}})


@each_example
def test_promise_21_every_image_has_a_version(values: Path | None) -> None:
    for _, _, pod in pod_specs(documents_of(values)):
        for container in pod["containers"]:
            _, separator, version = container["image"].partition("@" if "@" in container["image"] else ":")
            assert separator
            assert version not in ("", "latest")


@each_example
def test_inf_01_no_pod_is_marked_for_good(values: Path | None) -> None:
    """A pod so marked gets no graceful end when its spot node goes: the server marks itself, for a limited time."""
    for _, metadata, _ in pod_specs(documents_of(values)):
        assert "karpenter.sh/do-not-disrupt" not in metadata.get("annotations", {})
    assert errors({"podAnnotations": {"karpenter.sh/do-not-disrupt": "true"}})
    assert not errors({"podAnnotations": {"example.com/other": "true"}})


@each_example
def test_one_disruption_is_always_allowed(values: Path | None) -> None:
    for budget in of_kind(documents_of(values), "PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]
