"""README.md of a chart: a fixed beginning, and a table of its values made from their comments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helm.values_comments import Value

BEGINNING = """\
# {name}

{description} Chart {version}, for Soloist {app}. Kubernetes {kubernetes}.

```
helm install soloist helm/soloist --namespace soloist --create-namespace --set image.repository=REGISTRY/soloist
helm test soloist --namespace soloist
```

[docs/install.md](../../docs/install.md) goes the whole way on EKS, nodes and weights included.
[docs/probes.md](../../docs/probes.md) says how probes, graces and timeouts add up. `ci/` holds values to begin from:
{examples}.

Values are a closed schema: a misspelt one is refused. Below, each with its default; `settings` are those of the server.

"""


EXAMPLES = "a demo on CPUs, one GPU, a fleet on spot nodes, and one for development that is off at night"


def readme(
    chart: Mapping[str, Any], values: Sequence[Value], beginning: str = BEGINNING, examples: str = EXAMPLES
) -> str:
    """The whole text. `beginning` may name fields of the chart, and `examples`: what its example values are for."""
    beginning = beginning.format(
        name=chart["name"],
        description=chart["description"],
        version=chart["version"],
        app=chart["appVersion"],
        kubernetes=chart["kubeVersion"].removesuffix("-0").removeprefix(">=") + " or newer",
        examples=examples,
    )
    rows = ["| value | default | |", "|---|---|---|"]
    for value in values:
        default = f"`{_shown(value.default)}`" if value.leaf else ""
        name = f"`{'.'.join(value.path)}`"
        rows.append(
            f"| {name if value.leaf else f'**{name}**'} | {default} | {value.comment.replace('|', chr(92) + '|')} |"
        )
    return beginning + "\n".join(rows) + "\n"


def _shown(default: Any) -> str:
    return default if isinstance(default, str) and default else json.dumps(default)
