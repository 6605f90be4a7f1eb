"""API keys: a YAML file of hashed keys with what each may do, read again when it changes.

A key is random and long, so that one SHA-256 is enough: a slow hash would protect nothing more, and let strangers spend
the server's time.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from service.bounded_file import read_bounded
from service.file_watch import FileWatch

logger = logging.getLogger("soloist.keys")

PREFIX = "soloist-"
KEY_BYTES = 32
SHORTEST_KEY = 24  # characters of a key made elsewhere
HIGHEST_PRIORITY = 100  # what soloist.v1 lets anybody ask for
NO_SESSIONS = "none"
DEEPEST_NESTING = 8  # a right file has three levels

_NAME = re.compile(r"[\w.@:/-]{1,64}", re.ASCII)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class KeyFileError(Exception):
    """The file of keys cannot be used. One line: where, what is wrong, what is right; never what a key or hash is."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One line of the file.

    Attributes:
        digest: SHA-256 of the key.
        session_scope: keys of the same scope continue each other's sessions; None may not keep any.
        max_turns: turns that may wait or play at once; None is as many as the queue holds.
        max_priority: the highest priority it may ask for.
    """

    name: str
    digest: bytes = field(repr=False)
    session_scope: str | None
    max_turns: int | None = None
    max_priority: int = 0


def new_key() -> str:
    """A key that nobody has seen."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: str) -> str:
    """What the file says of a key."""
    return "sha256:" + _digest(key).hex()


def entry_text(fields: Mapping[str, str]) -> str:
    """An entry as it stands in the file."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]  # a JSON string is a YAML one
    return "  - " + "\n    ".join(lines) + "\n"


class Keyring:
    """The keys of one file, at one time."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self.keys = tuple(keys)

    def find(self, key: str) -> ApiKey | None:
        """The entry of this key. Takes as long whichever it is, or none."""
        digest = _digest(key)
        found: ApiKey | None = None
        for entry in self.keys:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return found


class KeyFile:
    """The keys of a file as it is now. A change that cannot be read is logged, and the keys before it stay."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._watch = FileWatch([path], clock)
        self._keyring = read_keys(path)

    def find(self, key: str) -> ApiKey | None:
        """As Keyring.find."""
        if self._watch.changed():
            self._read_again()
        return self._keyring.find(key)

    def _read_again(self) -> None:
        try:
            self._keyring = read_keys(self._path)
        except KeyFileError as error:
            logger.error("the changed keys cannot be used; those before stay", extra={"fields": {"error": str(error)}})
        else:
            logger.info("keys read again", extra={"fields": {"keys": len(self._keyring.keys)}})


def read_keys(path: Path) -> Keyring:
    """Read a file of keys. KeyFileError where anything in it is not what it must be."""
    try:
        text = read_bounded(path).decode("utf-8")
        _check_depth(path, text)
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:  # its own text quotes the line
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise KeyFileError(f"{path}:{line}: is not YAML") from None
    except yaml.YAMLError:
        raise KeyFileError(f"{path}: is not YAML") from None
    entries = _entries(path, root)
    keys = [_key(path, entry) for entry in entries]
    for index, key in enumerate(keys):
        where = f"{path}:{entries[index].start_mark.line + 1}"
        if any(key.digest == before.digest for before in keys[:index]):
            raise KeyFileError(f"{where}: this key is listed twice; keep one")
        if any(key.name == before.name for before in keys[:index]):
            raise KeyFileError(f"{where}: a second key named {key.name}; give each its own name")
    return Keyring(keys)


def _check_depth(path: Path, text: str) -> None:
    """Refuse deep nesting before `compose`, which recurses: keys are read while calls wait for them."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise KeyFileError(f"{path}:{line}: is nested deeper than a file of keys can be")


def _entries(path: Path, root: yaml.Node | None) -> list[yaml.MappingNode]:
    example = "must hold `keys:` and below it entries that begin with `- name: ...`"
    if not isinstance(root, yaml.MappingNode) or [key.value for key, _ in root.value] != ["keys"]:
        raise KeyFileError(f"{path}: {example}")
    listed = root.value[0][1]
    if not isinstance(listed, yaml.SequenceNode) or not listed.value:
        raise KeyFileError(f"{path}: {example}; a server without keys is started without the file")
    for entry in listed.value:
        if not isinstance(entry, yaml.MappingNode):
            raise KeyFileError(f"{path}:{entry.start_mark.line + 1}: {example}")
    return list(listed.value)


def _key(path: Path, entry: yaml.MappingNode) -> ApiKey:
    given: dict[str, tuple[str, str]] = {}
    for name, value in entry.value:
        where = f"{path}:{name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise KeyFileError(f"{where}: a field's name must be a single word")
        if name.value not in _FIELDS:
            close = difflib.get_close_matches(str(name.value), _FIELDS, n=1)
            raise KeyFileError(f"{where}: unknown field{f'; did you mean {close[0]}?' if close else ''}")
        if name.value in given:
            raise KeyFileError(f"{where}: {name.value} is set twice; keep one")
        if not isinstance(value, yaml.ScalarNode):
            raise KeyFileError(f"{where}: {name.value} must be a single value")
        given[name.value] = (where, value.value)
    here = f"{path}:{entry.start_mark.line + 1}"
    for needed in ("name", "hash"):
        if needed not in given:
            raise KeyFileError(f"{here}: a key needs a {needed}")
    values: dict[str, Any] = {}
    for name, (where, text) in given.items():
        try:
            values[name] = _FIELDS[name](text)
        except ValueError as error:
            raise KeyFileError(f"{where}: {name} {error}") from None
    return ApiKey(
        name=values["name"],
        digest=values["hash"],
        session_scope=values.get("session_scope", values["name"]),
        max_turns=values.get("max_turns"),
        max_priority=values.get("max_priority", 0),
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be 1 to 64 letters, digits or any of . _ - : @ /")
    return text


def _scope(text: str) -> str | None:
    return None if text == NO_SESSIONS else _name(text)


def _hash(text: str) -> bytes:
    match = _HASH.fullmatch(text)
    if match is None:
        raise ValueError("must be sha256: and 64 hexadecimal digits, as `soloist keys hash` prints it")
    return bytes.fromhex(match[1])


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return number

    return parse


_FIELDS: dict[str, Callable[[str], Any]] = {
    "name": _name,
    "hash": _hash,
    "session_scope": _scope,
    "max_turns": _whole(1, 10_000),
    "max_priority": _whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY),
}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
