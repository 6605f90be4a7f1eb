"""What the bootstrap installs fits what Terraform made and what the charts need."""

from __future__ import annotations

import pytest

from terraform.bootstrap.charts import RELEASES
from tests.helm.rendering import of_kind, render
from tests.terraform.fake_tools import PLATFORM
from tests.terraform.roots import TERRAFORM


@pytest.mark.parametrize("example", [None, "dev", "production"])
def test_helm_waits_longer_than_the_chart_gives_its_pods(example: str | None) -> None:
    files = (TERRAFORM / "examples" / example / "soloist-values.yaml",) if example else ()
    (wait_s,) = [release.wait_s for release in RELEASES if release.name == "soloist"]
    deployments = of_kind(render(PLATFORM["soloist_values"], files=files), "Deployment")
    assert [each for each in deployments if each["spec"]["progressDeadlineSeconds"] >= wait_s] == []
