"""Three sources, one frozen object, strict about spelling."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from engine.config import EngineConfig
from service.settings import SETTINGS, Settings, SettingsError, add_flags, load_settings


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "soloist.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_nothing_given_gives_every_default() -> None:
    settings = load_settings({}, {})

    assert settings == Settings()
    assert settings.engine == EngineConfig()


def test_flags_come_before_environment_before_file(tmp_path: Path) -> None:
    config = file_of(tmp_path, "queue_depth: 1\nslots: 1\nmodel: from-file\n")
    environment = {"SOLOIST_QUEUE_DEPTH": "2", "SOLOIST_SLOTS": "2", "SOLOIST_CONFIG": config}

    settings = load_settings({"queue_depth": "3"}, environment)

    assert settings.queue_depth == 3
    assert settings.engine.slots == 2
    assert settings.engine.model == "from-file"


def test_the_object_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_settings({}, {}).queue_depth = 3  # type: ignore[misc]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_reads_back_from_its_own_spelling(setting: object) -> None:
    from service.settings import Setting

    assert isinstance(setting, Setting)
    assert setting.kind.parse(setting.shown_default) == setting.default
    assert load_settings({}, {setting.variable: setting.shown_default}) == Settings()


def test_every_field_of_the_engine_is_a_setting() -> None:
    names = {setting.name for setting in SETTINGS}

    assert {field.name for field in dataclasses.fields(EngineConfig)} <= names


def test_the_parser_has_a_flag_for_each_with_its_default_in_the_help() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)

    given = vars(parser.parse_args(["--metrics-listen", "off", "--listen=0.0.0.0:1", "--insecure"]))
    text = parser.format_help()

    assert load_settings(given, {}) == Settings(metrics_listen=None, listen="0.0.0.0:1", insecure=True)
    for setting in SETTINGS:
        assert setting.flag in text
        assert setting.variable in " ".join(text.split()).replace("- ", "-")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SOLOIST_QUEUE_DEPHT": "1"}, "did you mean SOLOIST_QUEUE_DEPTH?"),
        ({"SOLOIST_QUEUE_DEPTH": "0"}, "SOLOIST_QUEUE_DEPTH: must be a whole number from 1 to 10000; got '0'"),
        ({"SOLOIST_DEVICE": "gpu"}, "must be one of auto, cpu, cuda"),
        ({"SOLOIST_LISTEN": "50051"}, "must be HOST:PORT"),
        ({"SOLOIST_LISTEN": "::1:50051"}, "IPv6 host in brackets"),
        ({"SOLOIST_METRICS_LISTEN": "no"}, "or `off`"),
        ({"SOLOIST_GRACE_S": "nan"}, "must be a number of seconds"),
        ({"SOLOIST_MODEL": " "}, "must not be empty"),
        ({"SOLOIST_REFLECTION": "maybe"}, "must be true or false"),
        ({"SOLOIST_PORT": "tcp://10.0.0.1:50051"}, "enableServiceLinks: false"),
        ({"SOLOIST_SERVICE_HOST": "10.0.0.1"}, "enableServiceLinks: false"),
        ({"SOLOIST_PORT_50051_TCP_ADDR": "10.0.0.1"}, "enableServiceLinks: false"),
    ],
)
def test_a_bad_variable_is_named_with_what_would_be_right(environment: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, environment)

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_max_active_turns_beyond_the_slots_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="--max-active-turns: must not exceed slots"):
        load_settings({"max_active_turns": "5", "slots": "4"}, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queue_dept: 3\n", "soloist.yaml:1: unknown setting `queue_dept`; did you mean queue_depth?"),
        ("model: a\nslots: two\n", "soloist.yaml:2: slots: must be a whole number"),
        ("slots: 1\nslots: 2\n", "is set twice"),
        ("slots: [1]\n", "must be a single value"),
        ("- slots\n", "must be a mapping"),
        ("slots: {\n", "soloist.yaml"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"config": file_of(tmp_path, text)}, {})

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_that_yaml_1_1_would_change_stay_words(tmp_path: Path) -> None:
    config = file_of(
        tmp_path,
        "graphs: on\nmodel: y\nsha256: 0123\nreflection: no\n"
        "context: null\nthreads:\ngraph_stages: [greedy, sampled]\n",
    )

    settings = load_settings({"config": config}, {})

    assert settings.engine.graphs == "on"
    assert settings.engine.model == "y"
    assert settings.engine.sha256 == "0123"
    assert settings.reflection is False
    assert settings.engine.context is None
    assert settings.engine.threads is None
    assert settings.engine.graph_stages == ("greedy", "sampled")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings({"config": str(tmp_path / "absent.yaml")}, {})


@pytest.mark.parametrize(
    "text", ["? [a]\n: 3\n", "{[]: 3}\n", "graph_stages: &g [*g]\n", "[" * 3000, "graph_stages: [[a]]\n"]
)
def test_odd_yaml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings({"config": str(file)}, {})
    assert "\n" not in str(caught.value)
