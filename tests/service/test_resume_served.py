"""Resuming over gRPC, from one real server to another: what a client without our library has to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from engine.config import EngineConfig
from service.app import App
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.checkpoints import Sizes, write_tiny_folder
from tests.service.running import quick

NO_END = dict.fromkeys(range(8), -100.0)
EXACT, FAST = chat_pb2.RESUME_MODE_EXACT, chat_pb2.RESUME_MODE_FAST


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"), sizes=Sizes(context=512))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
async def apps(model: Path) -> AsyncIterator[list[App]]:
    engine = EngineConfig(model=str(model), device="cpu", threads=1, prefill_chunk=16)
    async with AsyncExitStack() as stack:
        started = []
        for _ in range(2):
            app = App(quick(engine=engine))
            await app.start()
            stack.push_async_callback(app.close)
            await app.ready()
            started.append(app)
        yield started


def asking(*said: str, **fields: Any) -> chat_pb2.ChatRequest:
    """A conversation that ends with the reader; the answers before are what the server said."""
    roles = (chat_pb2.ROLE_USER, chat_pb2.ROLE_ASSISTANT)
    messages = [chat_pb2.Message(role=roles[n % 2], content=text) for n, text in enumerate(said)]
    wanted: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "logit_bias": NO_END, "session_id": "s"} | fields
    return chat_pb2.ChatRequest(messages=messages, **wanted)


async def play(app: App, request: chat_pb2.ChatRequest) -> list[chat_pb2.ChatEvent]:
    """The turn's events."""
    async with grpc.aio.insecure_channel(app.address) as channel:
        return [event async for event in chat_pb2_grpc.ChatServiceStub(channel).Chat(request)]


def beginning(events: list[chat_pb2.ChatEvent], tokens: int) -> list[chat_pb2.ChatEvent]:
    """An answer broken off after so many tokens, or a few less: a loaded machine sends several in one message."""
    return [
        event
        for event in events
        if event.HasField("started")
        or (event.HasField("delta") and event.delta.index + len(event.delta.token_ids) <= tokens)
    ]


def text(events: list[chat_pb2.ChatEvent]) -> str:
    return "".join(event.delta.text for event in events)


def ids(events: list[chat_pb2.ChatEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.delta.token_ids]


def going_on(
    request: chat_pb2.ChatRequest, events: list[chat_pb2.ChatEvent], mode: chat_pb2.ResumeMode.ValueType, **changes: Any
) -> chat_pb2.ChatRequest:
    again = chat_pb2.ChatRequest()
    again.CopyFrom(request)
    again.resume.resume_token = events[0].started.resume_token
    again.resume.token_ids.extend(ids(events))
    again.resume.mode = mode
    again.MergeFrom(chat_pb2.ChatRequest(**changes))
    return again


async def conversation(app: App) -> tuple[chat_pb2.ChatRequest, list[chat_pb2.ChatEvent]]:
    """The last of three turns of a session on one server."""
    first = text(await play(app, asking("Hello there", seed=1)))
    second = text(await play(app, asking("Hello there", first, "and then?", seed=2)))
    request = asking("Hello there", first, "and now?", second, "go on", seed=3)
    return request, await play(app, request)


async def test_promise_08_a_sessions_broken_turn_goes_on_elsewhere(apps: list[App]) -> None:
    request, whole = await conversation(apps[0])
    assert whole[-1].finished.usage.cached_tokens > 0, "the turn rests on a cut history"
    for app in apps:
        for tokens in (1, 7, 20):
            elsewhere = "" if app is apps[0] else f"t{tokens}"
            broken = beginning(whole, tokens)
            again = await play(app, going_on(request, broken, EXACT, session_id=elsewhere))
            assert again[0].started.resume_mode == EXACT
            assert ids(broken) + ids(again) == ids(whole)
            assert text(broken) + text(again) == text(whole)
            assert again[-1].finished.usage.completion_tokens == 24
            # On a loaded machine a message may hold many ids, and then nothing may be left to play.
            assert not ids(again) or again[1].delta.index == len(ids(broken))


async def test_the_seed_that_the_server_chose_is_kept(apps: list[App]) -> None:
    request = asking("Say something", session_id="")
    whole = await play(apps[0], request)
    again = await play(apps[1], going_on(request, beginning(whole, 5), EXACT))
    assert ids(beginning(whole, 5)) + ids(again) == ids(whole)
    assert again[0].started.seed == whole[0].started.seed


async def test_fast_says_so_and_counts_on(apps: list[App]) -> None:
    request = asking("Say something", session_id="")
    whole = await play(apps[0], request)
    again = await play(apps[1], going_on(request, beginning(whole, 10), FAST))
    assert again[0].started.resume_mode == FAST
    assert len(ids(beginning(whole, 10)) + ids(again)) == 24
    assert again[-1].finished.usage.completion_tokens == 24
    # And that answer can be resumed exactly, with how it came about.
    more = beginning(again, 14)
    third = going_on(request, [again[0], *beginning(whole, 10)[1:], *more[1:]], EXACT)
    assert ids(more) + ids(await play(apps[0], third)) == ids(again)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": [chat_pb2.Message(role=chat_pb2.ROLE_USER, content="more")]}, "messages"),
        ({"temperature": 0.5}, "temperature"),
        ({"seed": 9}, "seed"),
        ({"stop": ["x"]}, "resume.resume_token"),
        ({"resume": chat_pb2.Resume(resume_token=b"other")}, "resume.resume_token"),
        ({"resume": chat_pb2.Resume(token_ids=[10_000])}, "resume.token_ids[{ids}]"),
        ({"resume": chat_pb2.Resume(token_ids=[9] * 30)}, "resume.token_ids"),
    ],
)
async def test_what_is_not_that_answer_is_refused_by_name(apps: list[App], changes: dict[str, Any], field: str) -> None:
    request = asking("Say something", seed=8)
    broken = beginning(await play(apps[0], request), 12)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await play(apps[1], going_on(request, broken, EXACT, **changes))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    named = field.format(ids=len(ids(broken)))
    assert (refused.value.details() or "").startswith(f"{named}: ")


async def test_ids_that_are_not_its_own_are_told_as_such(apps: list[App]) -> None:
    request = asking("Say something", seed=8)
    whole = await play(apps[0], request)
    again = going_on(request, beginning(whole, 8), EXACT)
    again.resume.token_ids[3] += 1
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await play(apps[1], again)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "token 3 of the answer so far" in (refused.value.details() or "")


async def test_another_fingerprint_is_refused_and_fast_goes_on(model: Path, apps: list[App]) -> None:
    request = asking("Say something", seed=8)
    whole = await play(apps[0], request)
    app = App(quick(engine=EngineConfig(model=str(model), device="cpu", threads=1, prefill_chunk=8)))
    await app.start()
    await app.ready()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await play(app, going_on(request, beginning(whole, 8), EXACT))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert len(ids(beginning(whole, 8)) + ids(await play(app, going_on(request, beginning(whole, 8), FAST)))) == 24
    finally:
        await app.close()
