"""values.yaml read with its comments: each value's place, default and what is said above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml


class UndocumentedError(Exception):
    """A value has no comment above it."""


@dataclass(frozen=True, slots=True)
class Value:
    """Attributes:
    path: keys from the root.
    default: as YAML reads it.
    comment: the lines above it as one text.
    leaf: whether a user sets it as one: no map with keys of ours below it.
    """

    path: tuple[str, ...]
    default: Any
    comment: str
    leaf: bool


def read(text: str) -> list[Value]:
    """Every value and map of values.yaml, in its order.

    Raises:
        UndocumentedError: one of them has no comment.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return _below(root, (), text.splitlines())


def _below(node: yaml.MappingNode, path: tuple[str, ...], lines: list[str]) -> list[Value]:
    comments = [_comment(lines, key.start_mark.line) for key, _ in node.value]
    if path and not any(comments):
        return []  # a map that a user fills (labels and the like) is one value: what its default holds needs no words
    found: list[Value] = []
    for (key, value), comment in zip(node.value, comments, strict=True):
        here = (*path, str(key.value))
        if not comment:
            raise UndocumentedError(f"values.yaml:{key.start_mark.line + 1}: {'.'.join(here)} has no comment above it")
        below = _below(value, here, lines) if isinstance(value, yaml.MappingNode) else []
        found += [Value(here, _plain(value), comment, leaf=not below), *below]
    return found


def _comment(lines: list[str], at: int) -> str:
    words: list[str] = []
    while at > 0 and (line := lines[at - 1].strip()).startswith("# ") and not line.startswith(("# BEGIN", "# END")):
        words.insert(0, line[2:])
        at -= 1
    return " ".join(words)


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))
