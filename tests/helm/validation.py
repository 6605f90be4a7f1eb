"""Documents held against the schemas of the cluster that takes them, strictly: an unknown field or kind is a fault.

Core kinds against those of Kubernetes, as `kubernetes-validate --strict` has them, for each version of it. Custom
resources against their definitions in crds/, with every field refused that those do not list. Rules in CEL, which
definitions may carry, are in cel_rules.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from referencing import Registry, Resource

from tests.helm.rendering import Document

VERSIONS = ("1.32", "1.33", "1.34", "1.35", "1.36")
CRDS = Path(__file__).parent / "crds"
# Of any object's metadata, that which a chart may write.
METADATA = {"name", "namespace", "labels", "annotations"}


def faults(documents: Iterable[Document], versions: Sequence[str] = VERSIONS) -> list[str]:
    """One line for each fault: version, object, place, what is wrong. Empty where the cluster would take them all."""
    found: list[str] = []
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        found += [f"{name}: metadata.{key} is no field of a chart's" for key in {*document["metadata"]} - METADATA]
        custom = custom_resources().get((document["apiVersion"], document["kind"]))
        if custom is not None:
            found += [f"{name}: {line}" for line in _faults(custom, document)]
            continue
        for version in versions:
            core = core_kind(version, document["apiVersion"], document["kind"])
            if core is None:
                found.append(f"{version} {name}: no such kind as {document['apiVersion']} {document['kind']}")
            else:
                found += [f"{version} {name}: {line}" for line in _faults(core, document)]
    return found


def _faults(validator: Validator, document: Document) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@functools.cache
def core_kind(version: str, api_version: str, kind: str) -> Validator | None:
    """What validates a core kind, or None where this version of Kubernetes has no such kind.

    The schemas are those of kubernetes-validate. Its own `validate` reads 1.5 MB for each document.
    """
    # As it names its files: the group's first label, then the version.
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = _schemas(version) / f"{kind.lower()}-{group}.json"
    if not file.is_file():
        return None
    schema = json.loads(file.read_text(encoding="utf-8"))
    return Draft202012Validator(schema, registry=_definitions(version))


@functools.cache
def _schemas(version: str) -> Path:
    return Path(str(resources.files("kubernetes_validate"))) / "kubernetes-json-schema" / f"v{version}.0-local-strict"


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    contents = json.loads((_schemas(version) / "_definitions.json").read_text(encoding="utf-8"))
    resource = Resource.from_contents(contents)
    return Registry().with_resources([("_definitions.json", resource), (str(resource.id()), resource)])


@functools.cache
def custom_resources() -> dict[tuple[str, str], Validator]:
    """(apiVersion, kind) to what validates it, for every definition in crds/."""
    found: dict[tuple[str, str], Validator] = {}
    for file in sorted(CRDS.glob("*.yaml")):
        definition = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        if definition.get("kind") != "CustomResourceDefinition":  # one of ours
            properties = definition["properties"]
            found[properties["apiVersion"]["const"], properties["kind"]["const"]] = _strict(definition)
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            found[name] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def _strict(schema: Document) -> Validator:
    return Draft202012Validator(_closed(copy.deepcopy(schema)))


def _closed(schema: Any) -> Any:
    """The schema with what Kubernetes writes in its own words put into JSON Schema's, and objects closed."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        if schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties", "allOf", "anyOf", "oneOf", "not"):
        if key in schema:
            schema[key] = _closed(schema[key])
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema
