"""What is installed into the cluster, in this order, each pinned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CHARTS = HERE.parents[1] / "helm"


@dataclass(frozen=True, slots=True)
class Release:
    """One helm release.

    Attributes:
        namespace: None is that of our pods, which `namespace` of the root platform says.
        chart: an OCI address, a name in `repository`, or a folder.
        version: the chart's; None where the chart is a folder of this repository.
        facts: which output of which root is among its values, as (root, output).
        wait_s: how long its pods may take to become ready, seconds.
    """

    name: str
    namespace: str | None
    chart: str
    version: str | None = None
    repository: str | None = None
    facts: tuple[str, str] | None = None
    wait_s: int = 300

    @property
    def values(self) -> Path | None:
        """The file of our own choices beside this one, where there is one."""
        file = HERE / "values" / f"{self.name}.yaml"
        return file if file.exists() else None


# Karpenter before its pools, the operator before whoever wants to be scraped. Karpenter's CRDs have a chart of their
# own: helm installs those within a chart once, and never upgrades them.
PROMETHEUS = "oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack"
RELEASES = (
    Release("karpenter-crd", "kube-system", "oci://public.ecr.aws/karpenter/karpenter-crd", "1.14.1"),
    Release(
        "karpenter", "kube-system", "oci://public.ecr.aws/karpenter/karpenter", "1.14.1",
        facts=("cluster", "karpenter_values"),
    ),
    Release(
        "nvidia-device-plugin", "kube-system", "nvidia-device-plugin", "0.19.3",
        repository="https://nvidia.github.io/k8s-device-plugin",
    ),
    Release("kube-prometheus-stack", "monitoring", PROMETHEUS, "88.5.3", wait_s=600),
    Release("keda", "keda", "keda", "2.20.2", repository="https://kedacore.github.io/charts"),
    Release("soloist-nodes", None, str(CHARTS / "soloist-nodes"), facts=("cluster", "soloist_nodes_values")),
    # The first pod waits for a node to be bought, its image to be pulled and its model to be loaded. A minute more than
    # the chart itself gives it, so that what went wrong is said by the Deployment and not by helm's clock.
    Release("soloist", None, str(CHARTS / "soloist"), facts=("platform", "soloist_values"), wait_s=1860),
)  # fmt: skip
