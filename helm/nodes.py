"""The generated parts of the chart `soloist-nodes`: values.schema.json and README.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from helm import values_comments
from helm.closed_schema import closed_schema
from helm.readme import readme

HERE = Path(__file__).parent
CHART = HERE / "soloist-nodes"

BEGINNING = """\
# {name}

{description} Chart {version}, for
Karpenter's API v1. The server's `do_not_disrupt_s` needs Karpenter 1.12 or newer: older ones take no notice of it.

```
terraform -chdir=terraform/cluster output -json soloist_nodes_values > nodes.json
helm install soloist-nodes helm/soloist-nodes --namespace soloist --create-namespace --values nodes.json
```

It makes one EC2NodeClass and up to three NodePools with the label `soloist.dev/pool`, by which the chart `soloist`
finds its nodes: spot nodes of the types that you name, spot nodes of further types when those have run out, and
on-demand nodes last. Karpenter asks them by weight. Nodes have one GPU each, a taint that keeps everybody else away,
encrypted disks, and IMDSv2 with a single hop, so that pods cannot act as their node.

`ci/` holds values to begin from: {examples}.

## Which consolidation

Karpenter saves money by moving pods. `disruption.consolidation: eager`, the default, lets it do so after 30 s: a
scale-down frees its node soon, and a pod on an on-demand node is moved when a spot node can be had. Answers survive it,
since a server hands its turns over and clients resume them, but readers may notice a pause. `calm` waits until a node
is empty, and five minutes more: nobody is ever moved to save money. Choose it where pauses cost more than idle nodes.
What a spot notice does is the same in both: no setting stops it.

`disruption.terminationGracePeriod` bounds every drain. A pod that is held (`karpenter.sh/do-not-disrupt`) or guarded by
a disruption budget is told to leave in time for its own grace period to fit in. It has another side: with it Karpenter
replaces nodes whose image or age is out of date though a pod on them is held.

Values are a closed schema: a misspelt one is refused. Below, each with its default.

"""


def schema() -> str:
    """values.schema.json, with the names of instance types in it."""
    # Through JSON, so that what an alias repeats becomes two objects.
    written = json.loads(json.dumps(yaml.safe_load((HERE / "soloist-nodes.schema.yaml").read_text(encoding="utf-8"))))
    types = yaml.safe_load((CHART / "instance-types.yaml").read_text(encoding="utf-8"))
    written["$defs"]["instanceTypes"]["items"]["enum"] = list(types)
    return closed_schema("soloist-nodes", written, _values())


def chart_readme() -> str:
    """README.md."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return readme(chart, _values(), BEGINNING, "spot first, calm nodes, and many types for when spot is scarce")


def _values() -> list[values_comments.Value]:
    return values_comments.read((CHART / "values.yaml").read_text(encoding="utf-8"))


GENERATED: dict[str, Callable[[], str]] = {"values.schema.json": schema, "README.md": chart_readme}


def stale() -> list[str]:
    """The generated files that are not what they would be now."""
    return [
        name
        for name, make in GENERATED.items()
        if not (CHART / name).is_file() or (CHART / name).read_text(encoding="utf-8") != make()
    ]
