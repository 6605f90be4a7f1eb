"""Charts rendered by the real helm, as parsed documents.

`render` keeps what it rendered: the same values in one process are rendered once. Callers must not change documents.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import absent
from tests.project.tree import ROOT

Document = dict[str, Any]

TOOLS = ROOT / ".tools" / "bin"
CHART = ROOT / "helm" / "soloist"
NODES_CHART = ROOT / "helm" / "soloist-nodes"
RELEASE = NAMESPACE = "soloist"


class RenderError(Exception):
    """Helm refused; its text is what a user reads."""


def tool(name: str) -> str:
    """The path of `helm` or `kubectl` as `make tools` puts it; without it the test is skipped, and fails in CI."""
    path = TOOLS / name
    return str(path) if path.exists() else absent(f"{name} is not installed: make tools")


def helm(*arguments: str) -> str:
    """What `helm` prints.

    Raises:
        RenderError: it ended with another code than 0.
    """
    done = subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RenderError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def render(
    values: Mapping[str, Any] | None = None,
    *,
    chart: Path = CHART,
    files: Sequence[Path] = (),
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> list[Document]:
    """All documents of `helm template`, with `files` as values and `values` over them, tests and hooks included.

    Raises:
        RenderError: a value is refused.
    """
    return _rendered(json.dumps(values or {}, sort_keys=True), chart, tuple(files), release, namespace)


@functools.cache
def _rendered(values: str, chart: Path, files: tuple[Path, ...], release: str, namespace: str) -> list[Document]:
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as last:
        last.write(values)
        last.flush()
        of_files = [word for file in (*files, Path(last.name)) for word in ("--values", str(file))]
        return parse(helm("template", release, str(chart), "--namespace", namespace, *of_files))


def parse(text: str) -> list[Document]:
    """Documents of a YAML stream, without empty ones."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document is not None]


def ci_files(chart: Path = CHART) -> list[Path]:
    """The example values that lie with a chart."""
    return sorted((chart / "ci").glob("*-values.yaml"))


def of_kind(documents: Iterable[Document], kind: str) -> list[Document]:
    """The documents of this kind, in their order."""
    return [document for document in documents if document["kind"] == kind]


def the(documents: Iterable[Document], kind: str, name: str | None = None) -> Document:
    """The only document of this kind, or of this kind and name."""
    found = [d for d in of_kind(documents, kind) if name is None or d["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of kind {kind}{f' named {name}' if name else ''}"
    return found[0]


def pod_specs(documents: Iterable[Document]) -> Iterator[tuple[str, Document, Document]]:
    """(kind/name, metadata, spec) of every pod that these documents make."""
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            yield name, document["metadata"], document["spec"]
        elif "template" in document.get("spec", {}):
            template = document["spec"]["template"]
            yield name, template.get("metadata", {}), template["spec"]


def server_pod(documents: Iterable[Document], name: str = RELEASE) -> Document:
    """The pod's spec of the Deployment with this name."""
    spec: Document = the(documents, "Deployment", name)["spec"]["template"]["spec"]
    return spec


def server(documents: Iterable[Document], name: str = RELEASE) -> Document:
    """The server's container of the Deployment with this name."""
    [container] = server_pod(documents, name)["containers"]
    return container  # type: ignore[no-any-return]


def settings_file(documents: Iterable[Document], name: str = "soloist.yaml", of: str = RELEASE) -> str:
    """The settings file that pods mount, out of the ConfigMap `of`."""
    return str(the(documents, "ConfigMap", of)["data"][name])
