"""values.schema.json of a chart: what was written by hand, described by the comments of values.yaml, and closed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from helm.values_comments import Value


def closed_schema(chart: str, written: dict[str, Any], values: Iterable[Value]) -> str:
    """The file's text. `written` is changed.

    Raises:
        SystemExit: values.yaml has a value that `written` does not know.
    """
    for value in values:
        _at(chart, written, value.path)["description"] = value.comment
    closed = {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "title": f"Values of the chart {chart}",
        **_closed(written),
    }
    return json.dumps(closed, indent=1) + "\n"


def _at(chart: str, schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The schema of the value at `path`, free to be given a description of its own."""
    for key in path:
        if key not in schema.get("properties", {}):
            raise SystemExit(f"values.yaml has {'.'.join(path)}, and {chart}.schema.yaml does not")
        found = schema["properties"][key]
        if set(found) == {"$ref"}:
            # Beside a $ref nothing else counts in draft 7.
            found = {"allOf": [found]}
        schema["properties"][key] = found
        schema = found
    return schema


def _closed(schema: Any) -> Any:
    """The same with every object that has `properties` refusing all others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
