"""Where settings come from: flags, then environment variables, then a YAML file, all strict about spelling.

It is given the environment and reads none: service.settings is the one that does.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from service.bounded_file import read_bounded
from service.setting_rules import is_service_link
from service.setting_types import Kind

PREFIX = "SOLOIST_"
CONFIG = "config"
_DEEPEST_NESTING = 4  # a right file has two levels


class SettingsError(Exception):
    """A setting is misspelt, malformed or out of range. One line: where, what is wrong, what is right."""


def declared(default: Any, kind: Kind, help_text: str) -> Any:
    """A field of a dataclass of settings: its default, what it may be, and the line for `--help`."""
    return field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as data, enough for `--help`, a table in the docs and a chart's schema.

    Attributes:
        name: in YAML; `flag` and `variable` are its other two spellings.
        default: the typed default.
        prefix: of the variable.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    of_engine: bool = False
    prefix: str = PREFIX

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.prefix + self.name.upper()

    @property
    def shown_default(self) -> str:
        """The default as an operator would write it."""
        return self.kind.show(self.default)


def settings_of(kind: type[Any], prefix: str = PREFIX) -> tuple[Setting, ...]:
    """Every field of a dataclass that `declared` made."""
    return tuple(
        Setting(entry.name, entry.metadata["kind"], entry.default, entry.metadata["help"], prefix=prefix)
        for entry in dataclasses.fields(kind)
        if "kind" in entry.metadata
    )


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, and where, for the error about it."""

    source: str
    typed: Any


class Sources:
    """The three sources of one program's settings. `title` names it."""

    def __init__(self, title: str, settings: Sequence[Setting], prefix: str = PREFIX) -> None:
        self.title = title
        self.settings = tuple(settings)
        self.prefix = prefix
        self._by_name = {setting.name: setting for setting in settings}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """One flag per setting, and `--config`. Values stay text until `merged` types them."""
        # SUPPRESS is argparse's own mark for a flag that was not given: it leaves no attribute behind.
        unset = argparse.SUPPRESS
        parser.add_argument("--config", metavar="FILE", default=unset, help="YAML file with these settings")
        for setting in self.settings:
            parser.add_argument(
                setting.flag,
                dest=setting.name,
                metavar=setting.kind.metavar,
                nargs=None if setting.kind.alone is None else "?",
                const=setting.kind.alone,
                default=unset,
                help=f"{setting.help} (default: {setting.shown_default}; {setting.variable})".replace("%", "%%"),
            )

    def merged(
        self, flags: Mapping[str, Any], environment: Mapping[str, str], others: Sequence[Sources] = ()
    ) -> dict[str, Given]:
        """What was given, by name, each from its first source. Variables of `others` are let alone.

        Raises:
            SettingsError: one line for the operator.
        """
        by_flag = {name: value for name, value in flags.items() if value is not None}
        from_environment = self._read_environment(environment, others)
        config = by_flag.get(CONFIG) or from_environment.get(CONFIG, (None, ""))[1]
        found: dict[str, tuple[str, str]] = {}
        if config:
            found.update(self._read_file(Path(config)))
        found.update({name: pair for name, pair in from_environment.items() if name != CONFIG})
        found.update(
            {name: (self._by_name[name].flag, str(value)) for name, value in by_flag.items() if name in self._by_name}
        )
        return {
            name: Given(source, _typed(self._by_name[name], source, value)) for name, (source, value) in found.items()
        }

    def check(self, given: Mapping[str, Given], broken: Iterable[tuple[tuple[str, ...], str]]) -> None:
        """Raise SettingsError for the first rule that is broken, at the source of the setting most to blame."""
        for names, wrong in broken:
            source = next((given[name].source for name in names if name in given), self._by_name[names[0]].flag)
            raise SettingsError(f"{source}: {wrong}")

    def variables(self) -> dict[str, str]:
        """The environment's variables -> names."""
        return {setting.variable: setting.name for setting in self.settings} | {self.prefix + "CONFIG": CONFIG}

    def _read_environment(
        self, environment: Mapping[str, str], others: Sequence[Sources]
    ) -> dict[str, tuple[str, str]]:
        known = self.variables()
        foreign = {variable for other in others for variable in other.variables()}
        found: dict[str, tuple[str, str]] = {}
        for variable, value in environment.items():
            if not variable.startswith(PREFIX) or (variable in foreign and variable not in known):
                continue
            if variable not in known:
                if is_service_link(variable, value):
                    raise SettingsError(
                        f"{variable}={value}: injected by Kubernetes for a Service named `soloist...`, and no setting; "
                        "set `enableServiceLinks: false` in the pod"
                    )
                raise SettingsError(f"{variable}: unknown environment variable{_nearest(variable, list(known))}")
            found[known[variable]] = (variable, value)
        return found

    def _read_file(self, path: Path) -> dict[str, tuple[str, str]]:
        """Names to (source, text). Scalars stay as written: YAML 1.1 makes other things of `on`, `y` or `1_0`."""
        try:
            text = read_bounded(path).decode("utf-8")
            _check_depth(path, text)
            root = yaml.compose(text, Loader=yaml.BaseLoader)
        except OSError as error:
            raise SettingsError(f"--config {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"--config {path}: is not UTF-8 text") from None
        except yaml.YAMLError as error:
            raise SettingsError(f"--config {path}: {' '.join(str(error).split())}") from None
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise SettingsError(f"{path}: must be a mapping of setting names to values")
        found: dict[str, tuple[str, str]] = {}
        for key, value in root.value:
            if not isinstance(key, yaml.ScalarNode):
                raise SettingsError(f"{path}: a setting's name must be plain text")
            source = f"{path}:{key.start_mark.line + 1}: {key.value}"
            if key.value not in self._by_name:
                near = _nearest(str(key.value), list(self._by_name))
                raise SettingsError(f"{path}:{key.start_mark.line + 1}: unknown setting `{key.value}`{near}")
            if key.value in found:
                raise SettingsError(f"{source}: is set twice; keep one")
            found[key.value] = (source, _scalar(self._by_name[key.value], source, value))
        return found


def _check_depth(path: Path, text: str) -> None:
    """Refuse deep nesting before `compose`, which recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_NESTING:
            raise SettingsError(f"--config {path}: is nested deeper than settings can be")


def _scalar(setting: Setting, source: str, node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    is_list = setting.kind.many and isinstance(node, yaml.SequenceNode)
    if is_list and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(str(item.value) for item in node.value)
    raise SettingsError(f"{source}: must be a single value{', or a list of them' if setting.kind.many else ''}")


def _typed(setting: Setting, source: str, value: str) -> Any:
    try:
        return setting.kind.parse(value)
    except ValueError as error:
        raise SettingsError(f"{source}: {error}; got {value!r}") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
