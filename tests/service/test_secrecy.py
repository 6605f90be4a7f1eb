"""Nothing of what is said, and no key, in any log line or metric, whatever happens to a turn."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from engine.errors import FatalDeviceError, StepError
from service.app import App
from service.client import ChatClient, ChatError, Retries
from service.keys import entry_text, hash_of
from service.ops.logs import set_up_logs
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.fakes import FakeEngine, saying
from tests.service.running import quick, until

KEY, WRONG_KEY = "key-SECRETKEY-of-the-operator", "key-WRONGSECRET-of-a-stranger"
PROMPT, ANSWER, STOP, SESSION, NAME = "PROMPTSECRET", "ANSWERSECRET", "STOPSECRET", "SESSIONSECRET", "NAMESECRET"
FAULT = "FAULTSECRET"
SECRETS = (KEY, "SECRETKEY", "WRONGSECRET", PROMPT, ANSWER, STOP, SESSION, NAME, FAULT, hash_of(KEY)[7:])
LOGGERS = ("soloist", "service", "engine", "grpc", "asyncio")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged, at every level, as a log collector would get it."""
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).level) for name in LOGGERS}
    stream = io.StringIO()
    set_up_logs("debug", "json", stream)
    for name in ("grpc", "asyncio"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield stream
    for name, (handlers, level) in before.items():
        logging.getLogger(name).handlers[:] = handlers
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = True


def logged(stream: io.StringIO) -> str:
    """All that was logged so far."""
    for handler in logging.getLogger("soloist").handlers:
        handler.flush()
    return stream.getvalue()


class LeakyError(Exception):
    """A library's error: it quotes what it was given."""


def leaky(cause: bool = False) -> Exception:
    error = LeakyError(f"cannot encode {FAULT} {PROMPT}")
    error.__cause__ = ValueError(f"invalid literal {FAULT}") if cause else None
    return error


def messages(content: str = PROMPT) -> list[dict[str, str]]:
    return [{"role": "user", "content": content, "name": NAME}]


async def end_of(asking: Any) -> Any:
    try:
        return await asking
    except (ChatError, grpc.aio.AioRpcError) as error:
        return error


async def all_that_can_happen(app: App, engine: FakeEngine) -> None:
    """Good turns, each kind of bad one, strangers, bytes that are no message, and an observer that fails."""
    async with (
        ChatClient(app.address, api_key=KEY, retries=Retries(attempts=1)) as chat,
        ChatClient(app.address, api_key=WRONG_KEY, retries=Retries(attempts=1)) as stranger,
    ):
        await chat.ask(messages(), session_id=SESSION, stop=[STOP])
        await chat.ask(messages(), session_id=SESSION, logprobs=True, top_logprobs=2)
        await end_of(stranger.ask(messages()))
        for bad in (
            {"temperature": -1.0},
            {"session_id": SESSION * 20},
            {"stop": [STOP * 200]},
            {"session_id": f"{SESSION}\0"},
        ):
            assert isinstance(await end_of(chat.ask(messages(), **bad)), ChatError)
        assert isinstance(await end_of(chat.ask(messages(PROMPT * 1000))), ChatError)
        for error in (StepError("the step failed"), leaky(), leaky(cause=True)):
            engine.fail(3, error)
            assert isinstance(await end_of(chat.ask(messages(), session_id=SESSION)), ChatError)
        engine.hold()
        turns = [asyncio.create_task(end_of(chat.ask(messages(), session_id=SESSION))) for _ in range(3)]
        await until(lambda: any(turn.done() for turn in turns))  # the third of one session is refused
        assert isinstance(await end_of(chat.ask(messages(), deadline_s=0.2)), ChatError)
        turns[0].cancel()
        engine.release()
        await asyncio.gather(*turns, return_exceptions=True)
    async with grpc.aio.insecure_channel(app.address) as channel:
        metadata = (("authorization", f"Bearer {KEY}"),)
        method: Any = channel.unary_unary
        no_role: Any = 9
        bad_message = chat_pb2.Message(role=no_role, content=PROMPT)
        for call in (
            method("/soloist.v1.ChatService/Chat")(PROMPT.encode(), metadata=metadata),
            method(f"/soloist.v1.ChatService/{KEY}")(b"", metadata=metadata),
            method("/soloist.v1.ChatService/CountTokens")(
                chat_pb2.CountTokensRequest(messages=[bad_message]).SerializeToString(),
                metadata=metadata,
            ),
        ):
            assert isinstance(await end_of(call), grpc.aio.AioRpcError)
        await end_of(chat_pb2_grpc.ChatServiceStub(channel).GetLoad(chat_pb2.GetLoadRequest(), metadata=metadata))


@pytest.mark.parametrize("end", ["drained", "lost", "killed"])
async def test_sec_05_neither_keys_nor_content_reach_logs_or_metrics(
    tmp_path: Path, log: io.StringIO, end: str
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n" + entry_text({"name": "web", "hash": hash_of(KEY)}))
    engine = FakeEngine(answer=saying(f"{ANSWER} and more {STOP}"))
    app = App(quick(keys=str(keys)), engine.opener())
    await app.start()
    await app.ready()
    run = asyncio.create_task(app.run())
    await all_that_can_happen(app, engine)
    if end != "drained":
        engine.fail(2, FatalDeviceError("device-side assert") if end == "lost" else leaky_killer())
        async with ChatClient(app.address, api_key=KEY, retries=Retries(attempts=1)) as chat:
            assert isinstance(await end_of(chat.ask(messages())), ChatError)
    else:
        asyncio.get_running_loop().call_exception_handler(  # what asyncio itself says of a forgotten task
            {
                "message": f"Task exception was never retrieved\nfuture: <Task exception={leaky()!r}>",
                "exception": leaky(),
            }
        )
        app.signal()
    metrics = generate_latest(app.metrics.registry).decode()
    assert (await asyncio.wait_for(run, 30) == 0) == (end == "drained")

    text = logged(log)
    lines = [json.loads(line) for line in text.splitlines()]
    for secret in SECRETS:
        assert secret not in text
        assert secret not in metrics
    # The scan saw what it was to see.
    said = {line["message"] for line in lines}
    assert {"call", "turn", "turn refused", "stopped"} <= said
    assert any("LeakyError" in line.get("traceback", "") for line in lines)
    turns = [line for line in lines if line["logger"] == "soloist.audit" and line["message"] == "turn"]
    assert all(turn["caller"] == "key:web" for turn in turns)
    sessions = {turn["session"] for turn in turns if "session" in turn}
    assert len(sessions) == 1
    assert any(line.get("outcome") == "UNAUTHENTICATED" for line in lines)


class Killer(BaseException):
    """Ends a thread whatever it catches."""


def leaky_killer() -> BaseException:
    return Killer(f"while reading {FAULT}")


async def test_each_turn_leaves_one_line(tmp_path: Path, log: io.StringIO) -> None:
    engine = FakeEngine(answer=saying("abc"))
    app = App(quick(), engine.opener())
    await app.start()
    await app.ready()
    async with ChatClient(app.address) as chat:
        answer = await chat.ask("x", session_id="s")
    await app.close()

    [line] = [line for line in map(json.loads, logged(log).splitlines()) if line["logger"] == "soloist.audit"]
    assert line["request_id"] == answer.started.request_id
    assert line["end"] == "stop"
    assert line["prompt_tokens"] == answer.started.prompt_tokens
    assert line["completion_tokens"] == 4
    assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["seconds"]
    assert "caller" not in line
    assert line["session"] != "s"
