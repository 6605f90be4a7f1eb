"""The way down: first what Karpenter and controllers made, which Terraform does not know; then both roots.

Each step has its time. A step that fails or is late ends the way down, and what is still there is named: nothing is
destroyed over its head. Run it again when that is settled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from terraform.bootstrap.commands import BootstrapError, CommandFailedError, Commands, TooLateError
from terraform.bootstrap.facts import Roots, outputs, parsed, pods_namespace, require, with_kubeconfig

PODS_S = 300
# A node's pods leave within their grace, at the longest its pool's terminationGracePeriod; then an instance ends.
NODES_S = 1200
VOLUMES_S = 300
PLATFORM_S = 900
CLUSTER_S = 2400
# kubectl keeps the bound that it is given; this is for one that does not.
SLACK_S = 30.0

# As terraform/platform has it.
DEFAULT_NAMESPACE = "soloist"

GPU_RESOURCES = "nodepools.karpenter.sh"
CLAIMS = "nodeclaims.karpenter.sh"
NODE_CLASSES = "ec2nodeclasses.karpenter.k8s.aws"


def down(commands: Commands, roots: Roots, scratch: Path, *, data: bool) -> None:
    """Scale to nothing, let Karpenter end its nodes, see that none is left, and destroy both roots.

    With `data` models and images go too. Without it a bucket or repository that holds something stops the way down.

    Raises:
        BootstrapError: a step failed or was late; nothing after it was done.
    """
    facts = outputs(commands, roots.cluster)
    if "cluster_name" in facts:
        _empty(commands, roots, facts, _namespace(outputs(commands, roots.platform), roots.platform), scratch)
        _see_that_none_is_left(commands, facts["cluster_name"], require(facts, "region", roots.cluster))
    else:
        print("no cluster is applied: nothing to empty")
    if data:
        release = ("-var=destroy_data=true", *_files(roots.platform_vars))
        _terraform(commands, roots.platform, "apply", *release, timeout_s=PLATFORM_S)
    try:
        _destroy(commands, roots.platform, roots.platform_vars, PLATFORM_S)
    except CommandFailedError as error:
        if not any(held in error.output for held in ("BucketNotEmpty", "RepositoryNotEmpty")):
            raise
        raise BootstrapError(
            f"{error}\nThe bucket still holds models, or the repository images. The cluster is empty, and stands. "
            "Take away what you want to keep; then run this again with --data."
        ) from None
    _destroy(commands, roots.cluster, roots.cluster_vars, CLUSTER_S)


def _namespace(platform: dict[str, Any], folder: Path) -> str:
    """Where our pods are. A way down that is run again may find the root that knows it destroyed already."""
    if not platform:
        print(f"{folder} is not applied: looking for pods in its default namespace, {DEFAULT_NAMESPACE}")
        return DEFAULT_NAMESPACE
    return pods_namespace(platform, folder)


def _empty(commands: Commands, roots: Roots, facts: dict[str, Any], namespace: str, scratch: Path) -> None:
    """Take away what the cluster's controllers hold in AWS: nodes, load balancers, volumes."""
    try:
        commands = with_kubeconfig(commands, facts, roots.cluster, scratch)
    except CommandFailedError as error:
        if "ResourceNotFoundException" not in error.output:
            raise
        print("the cluster is gone already: nothing to empty")
        return
    # Autoscalers first, or they would undo the next step.
    kinds = "horizontalpodautoscalers.autoscaling"
    if _known(commands, "keda.sh"):
        kinds = f"scaledobjects.keda.sh,{kinds}"
    _kubectl(commands, "delete", kinds, "--all", "--namespace", namespace, box_s=60)
    _kubectl(commands, "scale", "deployments,statefulsets", "--all", "--replicas=0", "--namespace", namespace, box_s=60)
    _kubectl(commands, "wait", "pods", "--all", "--for=delete", "--namespace", namespace, box_s=PODS_S)
    commands.change("helm", "uninstall", "soloist", "--namespace", namespace, "--ignore-not-found", "--wait",
                    "--timeout", f"{PODS_S}s", timeout_s=PODS_S + 60)  # fmt: skip
    # Their load balancers and disks are AWS's, and would hold the VPC or cost on.
    balancers = ("--all-namespaces", "--field-selector", "spec.type=LoadBalancer")
    _kubectl(commands, "delete", "services", *balancers, box_s=VOLUMES_S)
    if _known(commands, "karpenter.sh"):
        _drain(commands, namespace)
    # After the pods that use them, which keep them till then.
    _kubectl(commands, "delete", "persistentvolumeclaims", "--all", "--namespace", namespace, box_s=VOLUMES_S)
    commands.change("helm", "uninstall", "kube-prometheus-stack", "--namespace", "monitoring", "--ignore-not-found",
                    "--wait", "--timeout", f"{PODS_S}s", timeout_s=PODS_S + 60)  # fmt: skip
    _kubectl(commands, "delete", "persistentvolumeclaims", "--all", "--namespace", "monitoring", box_s=VOLUMES_S)
    if not commands.dry_run and (disks := _disks_to_go(commands, {namespace, "monitoring"})):
        _kubectl(commands, "wait", *disks, "--for=delete", box_s=VOLUMES_S)


def _disks_to_go(commands: Commands, namespaces: set[str]) -> list[str]:
    """Volumes of claims that are gone. The driver deletes their disks afterwards, which it must still be there for."""
    said = parsed(commands.read("kubectl", "get", "persistentvolumes", "--output", "json") or "{}", "kubectl get")
    return [
        f"persistentvolume/{volume['metadata']['name']}"
        for volume in said.get("items", [])
        if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and volume["spec"].get("claimRef", {}).get("namespace") in namespaces
    ]


def _drain(commands: Commands, namespace: str) -> None:
    """Let Karpenter, which must still run, end its nodes and take back the instance profiles that it made."""
    _kubectl(commands, "delete", GPU_RESOURCES, "--all", "--wait=false", box_s=60)
    try:
        _kubectl(commands, "wait", CLAIMS, "--all", "--for=delete", box_s=NODES_S)
        # A role that an instance profile still holds cannot be destroyed.
        _kubectl(commands, "delete", NODE_CLASSES, "--all", box_s=VOLUMES_S)
    except (CommandFailedError, TooLateError) as error:
        left = commands.read("kubectl", "get", f"{CLAIMS},{NODE_CLASSES}", "--output", "name").split()
        raise BootstrapError(
            f"{error}\nStill there: {', '.join(left) or 'nothing'}. Nothing was destroyed. See why with "
            "`kubectl describe`, and in the log of kube-system/karpenter; then run this again."
        ) from None
    commands.change("helm", "uninstall", "soloist-nodes", "--namespace", namespace, "--ignore-not-found", "--wait",
                    "--timeout", f"{VOLUMES_S}s", timeout_s=VOLUMES_S + 60)  # fmt: skip


def _known(commands: Commands, group: str) -> bool:
    """Whether the cluster has resources of this group. A dry run talks to no cluster, and takes it that it has."""
    return commands.dry_run or bool(
        commands.read("kubectl", "api-resources", "--api-group", group, "--output", "name").strip()
    )


def _kubectl(commands: Commands, verb: str, *words: str, box_s: int) -> None:
    """`kubectl`, with its own bound, and ours a little beyond. That there is nothing to do is no failure."""
    bounds = {"delete": ["--ignore-not-found", f"--timeout={box_s}s"], "wait": [f"--timeout={box_s}s"]}.get(verb, [])
    try:
        commands.change("kubectl", verb, *words, *bounds, timeout_s=box_s + SLACK_S)
    except CommandFailedError as error:
        if not any(
            nothing in error.output for nothing in ("no matching resources found", "no objects passed to", "(NotFound)")
        ):
            raise


def _see_that_none_is_left(commands: Commands, cluster: str, region: str) -> None:
    """Ask AWS itself: an instance that no NodeClaim stands for would outlive the cluster, and its bill too."""
    said = commands.read(
        "aws", "ec2", "describe-instances", "--region", region, "--output", "json",
        "--filters", f"Name=tag:kubernetes.io/cluster/{cluster},Values=owned",
        "Name=tag-key,Values=karpenter.sh/nodepool",
        "Name=instance-state-name,Values=pending,running,stopping,stopped",
        "--query", "Reservations[].Instances[].InstanceId",
    )  # fmt: skip
    instances = parsed(said or "[]", "aws ec2 describe-instances")
    if not isinstance(instances, list) or not all(isinstance(instance, str) for instance in instances):
        raise BootstrapError(f"aws ec2 describe-instances printed no list of instances: {said[:200]!a}")
    if instances and not commands.dry_run:
        raise BootstrapError(
            f"Instances that Karpenter started are still there: {', '.join(instances)}. Nothing was destroyed. "
            "If no pod of yours is on them: "
            f"aws ec2 terminate-instances --region {region} --instance-ids {' '.join(instances)}; then run this again."
        )


def _destroy(commands: Commands, folder: Path, variables: tuple[Path, ...], box_s: int) -> None:
    _terraform(commands, folder, "destroy", *_files(variables), timeout_s=box_s)


def _files(variables: tuple[Path, ...]) -> list[str]:
    return [f"-var-file={file.resolve()}" for file in variables]


def _terraform(commands: Commands, folder: Path, verb: str, *flags: str, timeout_s: float) -> None:
    quietly = ("-auto-approve", "-input=false", "-no-color")
    commands.change("terraform", f"-chdir={folder}", verb, *quietly, *flags, timeout_s=timeout_s)
