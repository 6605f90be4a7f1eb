"""Every value of the chart with another right value for it, and with wrong ones: made from the schema, not by hand."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from helm import values_comments
from helm.values_comments import Value
from tests.helm.rendering import CHART

Path = tuple[str, ...]
Values = dict[str, Any]

# What a text, a list or a map may be, from the first that the schema takes.
TEXTS = (
    "other", "7", "7Gi", "7m", "sha256:" + "7" * 64, "7" * 64, "s3://other/prefix", "https://other.example",
    "other/name", "example.com/other", "10.7.0.0/16", "/other", "7 7 * * *", "Europe/Paris", "other.example/image:7",
)  # fmt: skip
LISTS: tuple[list[Any], ...] = (
    ["other"],
    ["greedy"],
    [{"name": "other"}],
    [{"ipBlock": {"cidr": "10.7.0.0/16"}}],
    [{"key": "other", "operator": "Exists"}],
    [{"to": [{"ipBlock": {"cidr": "10.7.0.0/16"}}]}],
)
MAPS = ({"other.example/key": "other"},)


def leaves() -> list[Value]:
    """Every value that a user sets as one."""
    return [value for value in _values() if value.leaf]


def maps() -> list[Path]:
    """Every map whose keys are ours."""
    return [(), *(value.path for value in _values() if not value.leaf)]


@functools.cache
def _values() -> list[Value]:
    return values_comments.read((CHART / "values.yaml").read_text(encoding="utf-8"))


@functools.cache
def schema() -> Mapping[str, Any]:
    """values.schema.json."""
    read: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return read


def of(path: Path, value: Any) -> Values:
    """Values in which `path` alone is set."""
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def over(base: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """`base` with `above` laid over it, map by map, as helm does."""
    merged = copy.deepcopy(dict(base))
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def errors(values: Mapping[str, Any]) -> list[str]:
    """What the schema says against these values."""
    return [f"{error.json_path}: {error.message}" for error in jsonschema.Draft7Validator(schema()).iter_errors(values)]


def another(leaf: Value) -> Any:
    """A right value of this leaf that is not its default."""
    for candidate in _candidates(leaf):
        if candidate != leaf.default and not errors(of(leaf.path, candidate)):
            return candidate
    raise AssertionError(f"{'.'.join(leaf.path)}: no candidate is another right value")


def wrong(leaf: Value) -> Iterator[Any]:
    """Values that this leaf must refuse: of another type, out of bounds, no member, not of the form."""
    yield {"a": ["b"]}
    yield [[["a"]]]
    if not isinstance(leaf.default, bool):
        yield True
    if not isinstance(leaf.default, str):
        yield "\n not right"
    for part in _parts(leaf.path):
        if "minimum" in part:
            yield part["minimum"] - 1
        if "maximum" in part:
            yield part["maximum"] + 1
        if "pattern" in part or "enum" in part:
            yield " "
            yield 7.5
        if part.get("type") == "integer":
            yield 7.5


def _candidates(leaf: Value) -> Iterator[Any]:
    if isinstance(leaf.default, bool):
        yield not leaf.default
        return
    for part in _parts(leaf.path):
        yield from part.get("enum", ())
        if part.get("type") in ("integer", "number"):
            low = part.get("minimum", 0)
            yield leaf.default + 1 if isinstance(leaf.default, int) else low + 1
            yield low
    if isinstance(leaf.default, list):
        yield from LISTS
    elif isinstance(leaf.default, dict):
        yield from MAPS
    else:
        yield from TEXTS


def _parts(path: Path) -> Iterator[Mapping[str, Any]]:
    """The schemas that a leaf must satisfy, or may choose from."""
    found: Any = schema()
    for key in path:
        found = found["properties"][key]
    waiting = [found]
    while waiting:
        part = waiting.pop(0)
        if "$ref" in part:
            part = schema()["$defs"][part["$ref"].rpartition("/")[2]]
        yield part
        waiting += [*part.get("allOf", ()), *part.get("anyOf", ())]
