"""The rules in CEL that definitions of custom resources carry (`x-kubernetes-validations`), held against documents.

What the schema alone cannot say: that of two fields one must be there, which labels are Karpenter's own. Rules about a
change (`oldSelf`) are left out, as a chart is rendered once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import celpy
import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel

from tests.helm.rendering import Document
from tests.helm.validation import CRDS


def broken_rules(documents: Iterable[Document]) -> list[str]:
    """One line for each rule that does not hold: object, place, what the definition says about it."""
    found: list[str] = []
    for document in documents:
        schema = _schemas().get((document["apiVersion"], document["kind"]))
        assert schema is not None, f"no definition of {document['apiVersion']} {document['kind']}"
        name = f"{document['kind']}/{document['metadata']['name']}"
        found += [f"{name}: {line}" for line in _broken(schema, document, "$")]
    return found


def rules_of(api_version: str, kind: str) -> list[str]:
    """Every rule of a definition that is held against documents."""

    def below(schema: Any) -> Iterator[str]:
        yield from (rule["rule"] for rule in schema.get("x-kubernetes-validations", ()) if _is_of_one_state(rule))
        for part in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
            if isinstance(part, dict):
                yield from below(part)

    return list(below(_schemas()[api_version, kind]))


def _broken(schema: Any, value: Any, place: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if _is_of_one_state(rule) and not _program(rule["rule"]).evaluate({"self": json_to_cel(value)}):
            yield f"{place}: {rule.get('message', rule['rule'])}"
    if isinstance(value, dict):
        for key, inner in value.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(part, dict):
                yield from _broken(part, inner, f"{place}.{key}")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, inner in enumerate(value):
            yield from _broken(schema["items"], inner, f"{place}[{index}]")


def _is_of_one_state(rule: dict[str, Any]) -> bool:
    return "oldSelf" not in rule["rule"]


@functools.cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions={"find": _find, "split": _split})


def _find(text: str, pattern: str) -> celtypes.StringType:
    """Kubernetes' own: the first match, or nothing."""
    match = re.search(str(pattern), str(text))
    return celtypes.StringType(match[0] if match else "")


def _split(text: str, separator: str) -> celtypes.ListType:
    """Of CEL's extension for strings."""
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(separator))])


@functools.cache
def _schemas() -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for file in sorted(CRDS.glob("*.yaml")):
        definition = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        if definition.get("kind") != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found
