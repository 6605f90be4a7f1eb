"""Gateways as processes before a real model: one dies in the middle of an answer, and another one gives the rest."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx2 import TransportError
from openai import APIError, OpenAI

from service.__main__ import main
from service.gateway.serving import CannotStartError, GatewayServer, open_backend, run_gateway
from service.gateway.settings import GatewaySettings
from service.settings import GATEWAY_SETTINGS, SettingsError, load_gateway_settings, load_settings
from tests.running_gateway import RunningGateway, start_gateways
from tests.running_server import RunningServer
from tests.service.gateway.running import CHAT, Read, SseEvent

QUESTION = "Name three rivers of France and say where each of them ends."
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 1.0,
    "seed": 11,
    "max_tokens": 16,
}
PATIENCE_S = 60.0  # a model on a busy machine


@pytest.fixture(scope="module")
def gateways(real_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningGateway]]:
    """The first one stays. Whoever ends another one takes it from the end."""
    folder = tmp_path_factory.mktemp("gateways")
    with start_gateways(4, "--target", real_server.target, "--log-format", "json", folder=folder) as started:
        yield started


def ask(gateway: RunningGateway, body: dict[str, Any], **headers: str) -> Any:
    """One answer, whole."""
    return httpx.post(gateway.url + CHAT, json=body, headers=headers, timeout=PATIENCE_S).json()


def read(gateway: RunningGateway, body: dict[str, Any], *, after: str | None = None, kill_after: int = 0) -> Read:
    """One stream, as far as it comes. The gateway is killed when `kill_after` events are there."""
    found = Read()
    headers = {} if after is None else {"Last-Event-ID": after}
    event = SseEvent()
    try:
        with httpx.stream(
            "POST", gateway.url + CHAT, json={**body, "stream": True}, headers=headers, timeout=PATIENCE_S
        ) as response:
            found.status = response.status_code
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    event.id = value
                elif name == "data":
                    event.data = value
                elif not line and event.data:
                    found.events.append(event)
                    event = SseEvent()
                    if len(found.events) == kill_after:
                        gateway.process.send_signal(signal.SIGKILL)
    except httpx.TransportError:
        assert kill_after
    return found


def test_promise_08_a_gateway_killed_hard_costs_no_word_at_the_next_one(gateways: list[RunningGateway]) -> None:
    doomed, other = gateways.pop(), gateways[0]
    session = {**BODY, "session_id": "rivers"}
    first = ask(doomed, session)["choices"][0]["message"]
    unbroken = read(other, BODY)
    again = {"role": "user", "content": "And of Germany?"}
    # A turn of a session, whose beginning is in the server's cache, and not in the gateway.
    body = {**session, "messages": [*BODY["messages"], {"role": "assistant", "content": first["content"]}, again]}
    begun = read(doomed, body, kill_after=7)
    assert not begun.whole
    rest = read(other, body, after=begun.last_id)
    assert rest.whole
    assert (begun.text, rest.text) != ("", "")
    whole = ask(other, {**body, "session_id": "other"})
    assert begun.text + rest.text == whole["choices"][0]["message"]["content"]
    assert unbroken.text == first["content"], "the same seed gives the same words"


def test_a_client_of_openai_asks_again_with_its_seed_and_gets_the_same_words(gateways: list[RunningGateway]) -> None:
    doomed, other = gateways.pop(), gateways[0]
    asked: dict[str, Any] = {**BODY, "model": "SmolLM2-135M-Instruct", "stream": True}
    said: list[str] = []

    def hear(gateway: RunningGateway, *, kill_after: int) -> None:
        for chunk in _openai(gateway).chat.completions.create(**asked):
            said.append(chunk.choices[0].delta.content or "")
            if len(said) == kill_after:
                gateway.process.kill()

    with pytest.raises((APIError, TransportError)):
        hear(doomed, kill_after=6)
    begun = "".join(said)
    said.clear()
    hear(other, kill_after=0)
    assert begun
    assert "".join(said).startswith(begun)


def test_answers_of_a_form_by_a_real_model(gateways: list[RunningGateway]) -> None:
    client = _openai(gateways[0])
    asked: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "messages": BODY["messages"], "max_tokens": 40}
    properties = {"long": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["long"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(**asked, response_format=form).choices[0].message.content
    assert json.loads(answer).keys() == {"long"}
    answer = client.chat.completions.create(**asked, response_format={"type": "json_object"})
    assert answer.choices[0].message.content.startswith("{")
    choice = client.chat.completions.create(**asked, response_format={"type": "choice", "choice": ["yes", "no"]})
    assert choice.choices[0].message.content in ("yes", "no")


def test_it_leaves_in_order_and_its_log_says_nothing_of_what_was_said(gateways: list[RunningGateway]) -> None:
    gateway = gateways.pop()
    answer = ask(gateway, BODY, Authorization="Bearer sk-secret")
    urllib.request.urlopen(f"{gateway.url}/healthz").close()
    gateway.process.terminate()
    assert gateway.process.wait(10) == 0
    log = gateway.log.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in log.splitlines()]
    [line] = [line for line in lines if line["logger"] == "soloist.gateway.access" and line["path"] == CHAT]
    assert (line["method"], line["status"], line["end"]) == ("POST", 200, "length")
    assert line["request_id"] == answer["soloist"]["request_id"]
    assert line["completion_tokens"] == 16
    for secret in ("sk-secret", "rivers", answer["choices"][0]["message"]["content"][:12]):
        assert secret not in log


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--listen", "0.0.0.0:8080"], "say --insecure"),
        (["--listen", "0.0.0.0:8080", "--insecure", "--api-key-file", "key"], "--hosts: must name"),
        (["--api-key-file", "key", "--cors-origins", "*"], "--cors-origins: cannot be *"),
        (["--https-cert", "x"], "--https-cert and --https-key"),
        (["--target", ","], "the address of a server"),
        (["--taget", "x"], "did you mean --target?"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", *flags]) == 2
    told = capsys.readouterr().err
    assert told.startswith("soloist: ")
    assert told.count("\n") == 1
    assert said in told


class NotFinding:
    """Finds this package no more."""

    def __init__(self, absent: str) -> None:
        self._absent = absent

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == self._absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("absent", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_how_to_install_it(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [name for name in sys.modules if name.startswith("service.gateway.")]
    for name in [*ours, *(name for name in sys.modules if name.partition(".")[0] == absent)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotFinding(absent), *sys.meta_path])
    assert main(["gateway"]) == 1
    assert capsys.readouterr().err == f"soloist: {absent} is not installed; pip install 'soloist[gateway]'\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"api_key_file": "/nowhere/key"}, "--api-key-file /nowhere/key: No such file"),
        ({"api_key_file": "/dev/zero"}, "--api-key-file /dev/zero: is larger than"),
        ({"https_cert": "/nowhere/a", "https_key": "/nowhere/b"}, "--https-cert and --https-key: No such file"),
        ({"tls_ca": "/nowhere/ca"}, "/nowhere/ca: No such file"),
        ({"tls_ca": __file__}, "must hold PEM certificates"),
        ({"tls_cert": __file__, "tls_key": __file__}, "its own unencrypted key"),
    ],
)
async def test_a_file_that_is_not_there_is_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(CannotStartError, match=said):
        GatewayServer(open_backend(GatewaySettings(**changes)))  # type: ignore[arg-type] # all are text


def test_a_port_that_is_taken_is_named(gateways: list[RunningGateway]) -> None:
    port = gateways[0].port
    with pytest.raises(CannotStartError, match=f"--listen 127.0.0.1:{port}: Address already in use"):
        run_gateway(GatewaySettings(listen=f"127.0.0.1:{port}"))


def test_settings_come_from_flags_the_environment_and_a_file(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("max_turns: 3\nmodel_names: [a, b]\ngrace_s: 7\n", encoding="utf-8")
    environment = {
        "SOLOIST_GATEWAY_CONFIG": str(config),
        "SOLOIST_GATEWAY_MAX_TURNS": "4",
        "SOLOIST_MODEL": "a-servers",
    }
    settings = load_gateway_settings({"grace_s": "9"}, environment)
    assert (settings.max_turns, settings.model_names, settings.grace_s) == (4, ("a", "b"), 9.0)
    assert load_gateway_settings({}, {}) == GatewaySettings()
    with pytest.raises(SettingsError, match="did you mean SOLOIST_GATEWAY_TARGET"):
        load_gateway_settings({}, {"SOLOIST_GATEWAY_TARGT": "x"})
    with pytest.raises(SettingsError, match="unknown environment variable"):
        load_gateway_settings({}, {"SOLOIST_TARGET": "x"})
    with pytest.raises(SettingsError, match="enableServiceLinks"):
        load_gateway_settings({}, {"SOLOIST_GATEWAY_SERVICE_HOST": "10.0.0.1"})
    assert load_settings({}, {"SOLOIST_GATEWAY_TARGET": "x"}) == load_settings({}, {}), "the gateway's, not a server's"


@pytest.mark.parametrize("setting", GATEWAY_SETTINGS, ids=lambda setting: setting.name)
def test_every_default_reads_back_from_its_own_spelling(setting: Any) -> None:
    assert setting.kind.parse(setting.shown_default) == setting.default


def _openai(gateway: RunningGateway) -> Any:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)
