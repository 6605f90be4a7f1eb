"""Who may ask and what they may, over a whole server: TLS, client certificates, API keys, and their rotation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.app import App, StartError
from service.client import (
    BadRequestError,
    ChatClient,
    ChatError,
    OverloadedError,
    Retries,
    Tls,
    UnauthenticatedError,
    UnavailableError,
)
from service.keys import entry_text, hash_of
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.certificates import Authority
from tests.fakes import FakeEngine, endless, saying
from tests.service.running import in_flight, quick, running, until

ONCE = Retries(attempts=1)
ALICE, BOB = "the-key-of-alice-is-very-long", "the-key-of-bob-is-very-long-too"


@pytest.fixture(autouse=True)
def _looks_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.file_watch.LOOK_EVERY_S", 0.0)


def keys_file(folder: Path, *entries: dict[str, str]) -> str:
    path = folder / "keys.yaml"
    path.write_text("keys:\n" + "".join(entry_text(entry) for entry in entries), encoding="utf-8")
    return str(path)


def alice(**more: str) -> dict[str, str]:
    return {"name": "alice", "hash": hash_of(ALICE), **more}


def bob(**more: str) -> dict[str, str]:
    return {"name": "bob", "hash": hash_of(BOB), **more}


def client(app: App, key: str | None = None, tls: Tls | None = None) -> ChatClient:
    return ChatClient(app.address, api_key=key, tls=tls, retries=ONCE)


async def refusal(app: App, metadata: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Status, text and details, but for the request's own id."""
    async with grpc.aio.insecure_channel(app.address) as channel:
        call = chat_pb2_grpc.ChatServiceStub(channel).Chat(chat_pb2.ChatRequest(), metadata=tuple(metadata), timeout=30)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    error = caught.value
    trailing = {key: value for key, value in error.trailing_metadata() if key != "grpc-status-details-bin"}
    return error.code(), error.details(), trailing


# API keys.


async def test_a_key_opens_the_door(tmp_path: Path) -> None:
    async with running(FakeEngine(answer=saying("Hi")), keys=keys_file(tmp_path, alice(), bob())) as app:
        for key in (ALICE, BOB):
            async with client(app, key) as chat:
                assert (await chat.ask("x")).text == "Hi"
                assert (await chat.count_tokens("x")) > 0
                assert (await chat.server_info()).model == "fake"
                assert (await chat.load()).active_turns == 0


async def test_sec_05_without_a_key_every_method_says_the_same_whatever_is_wrong(tmp_path: Path) -> None:
    async with running(keys=keys_file(tmp_path, alice())) as app:
        told = [
            await refusal(app, metadata)
            for metadata in (
                [],
                [("authorization", f"Bearer {BOB}")],
                [("authorization", f"Bearer {ALICE[:-1]}")],
                [("authorization", f"Bearer {ALICE}x")],
                [("authorization", ALICE)],
                [("authorization", f"Basic {ALICE}")],
                [("authorization", "Bearer ")],
                [("authorization", f"Bearer {ALICE}"), ("authorization", f"Bearer {ALICE}")],
            )
        ]
        assert told == [told[0]] * len(told)
        assert told[0][0] is grpc.StatusCode.UNAUTHENTICATED
        async with client(app) as chat:
            for asking in (chat.ask("x"), chat.count_tokens("x"), chat.server_info(), chat.load()):
                with pytest.raises(UnauthenticatedError) as caught:
                    await asking
                assert caught.value.reason == "UNAUTHENTICATED"


async def test_what_does_not_exist_needs_a_key_too(tmp_path: Path) -> None:
    async with running(keys=keys_file(tmp_path, alice())) as app, grpc.aio.insecure_channel(app.address) as channel:
        call: Any = channel.unary_unary("/soloist.v1.ChatService/Secret")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def services(app: App, key: str | None = None) -> str:
    """What reflection tells."""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    async with grpc.aio.insecure_channel(app.address) as channel:
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            asked, metadata=metadata, timeout=30
        )
        return str(await call.read())


async def test_health_is_open_and_reflection_where_the_operator_says_so(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, alice())
    async with running(keys=keys) as app:
        async with grpc.aio.insecure_channel(app.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services(app)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "soloist.v1" in await services(app, ALICE)
    async with running(keys=keys, open_reflection=True) as app:
        assert "soloist.v1" in await services(app)


async def test_two_keys_with_one_session_id_never_share_it(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, alice(), bob(), {"name": "new", "hash": hash_of(ALICE + "2"), "session_scope": "alice"})
    async with running(FakeEngine(answer=saying("ok")), keys=keys) as app:

        async def cached(key: str) -> int:
            async with client(app, key) as chat:
                return (await chat.ask("the same words", session_id="s")).finished.cached_tokens

        assert await cached(ALICE) == 0
        assert await cached(BOB) == 0
        assert await cached(ALICE) > 0
        assert await cached(BOB) > 0
        assert await cached(ALICE + "2") > 0  # a new key of the same scope continues


async def test_a_key_may_have_so_many_turns_and_others_are_not_concerned(tmp_path: Path) -> None:
    engine = FakeEngine(answer=endless, context=1 << 20)
    keys = keys_file(tmp_path, alice(max_turns="2"), bob())
    async with running(engine, keys=keys) as app, client(app, ALICE) as one, client(app, BOB) as other:
        first, second = asyncio.create_task(one.ask("x")), asyncio.create_task(one.ask("y"))
        await until(lambda: in_flight(app) == 2)
        with pytest.raises(OverloadedError) as caught:
            await one.ask("z")
        assert caught.value.reason == "CALLER_LIMIT"
        assert caught.value.retry_after_s == 1.0
        others = asyncio.create_task(other.ask("x"))
        await until(lambda: in_flight(app) == 3)
        second.cancel()
        await until(lambda: in_flight(app) == 2)
        again = asyncio.create_task(one.ask("z"))
        await until(lambda: in_flight(app) == 3)
        for task in (first, again, others):
            task.cancel()
        assert 'soloist_rejections_total{reason="caller_limit"} 1.0' in page(app)


def page(app: App) -> str:
    from prometheus_client import generate_latest

    return generate_latest(app.metrics.registry).decode()


async def test_priority_and_sessions_are_bounded_by_the_key(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, alice(max_priority="5", session_scope="none"), bob())
    async with running(keys=keys) as app, client(app, ALICE) as one, client(app, BOB) as other:
        for chat, fields, named in (
            (one, {"priority": 6}, "priority"),
            (one, {"session_id": "s"}, "session_id"),
            (other, {"priority": 1}, "priority"),
        ):
            with pytest.raises(BadRequestError) as caught:
                await chat.ask("x", **fields)
            assert caught.value.field == named
        await one.ask("x", priority=5)
        await other.ask("x", priority=-5, session_id="s")


async def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    async with running(keys=keys_file(tmp_path, alice())) as app, client(app, ALICE) as old, client(app, BOB) as new:
        await old.ask("x")
        keys_file(tmp_path, bob())
        await new.ask("x")
        with pytest.raises(UnauthenticatedError):
            await old.ask("x")


async def test_a_withdrawn_key_says_no_more_in_an_open_conversation(tmp_path: Path) -> None:
    say = chat_pb2.ConverseRequest(
        say=chat_pb2.ChatRequest(messages=[chat_pb2.Message(role=chat_pb2.ROLE_USER, content="x")])
    )
    async with running(keys=keys_file(tmp_path, alice())) as app, grpc.aio.insecure_channel(app.address) as channel:
        call: Any = chat_pb2_grpc.ChatServiceStub(channel).Converse(metadata=(("authorization", f"Bearer {ALICE}"),))
        await call.write(say)
        while (await call.read()).WhichOneof("event") != "finished":
            pass
        keys_file(tmp_path, bob())
        await call.write(say)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# TLS.


async def test_tls_and_a_certificate_that_is_rotated_without_a_restart(tmp_path: Path) -> None:
    old, new = Authority.make(tmp_path, "old"), Authority.make(tmp_path, "new")
    cert, key = old.issue(tmp_path, "server", "127.0.0.1")
    async with running(tls_cert=str(cert), tls_key=str(key)) as app, client(app, tls=old.trusted()) as chat:
        await chat.ask("x")
        for tls in (None, new.trusted()):
            async with client(app, tls=tls) as stranger:
                with pytest.raises(UnavailableError):
                    await stranger.ask("x", deadline_s=5)
        new.issue(tmp_path, "server", "127.0.0.1")
        async with client(app, tls=new.trusted()) as later:
            await later.ask("x")
        await chat.ask("x")  # a connection that stands is not cut
        async with client(app, tls=old.trusted()) as late:
            with pytest.raises(UnavailableError):
                await late.ask("x", deadline_s=5)


async def test_half_a_rotation_waits_for_its_other_half(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "ca")
    cert, key = authority.issue(tmp_path, "server", "127.0.0.1")
    before = key.read_bytes()
    async with running(tls_cert=str(cert), tls_key=str(key)) as app:
        authority.issue(tmp_path, "server", "127.0.0.1")
        after = key.read_bytes()
        key.write_bytes(before)
        async with client(app, tls=authority.trusted()) as chat:
            await chat.ask("x")
        key.write_bytes(after)
        async with client(app, tls=authority.trusted()) as chat:
            await chat.ask("x")


async def test_mutual_tls_lets_in_whom_the_ca_signed_and_names_them(tmp_path: Path) -> None:
    authority, others = Authority.make(tmp_path, "ca"), Authority.make(tmp_path, "others")
    cert, key = authority.issue(tmp_path, "server", "127.0.0.1")
    ann = authority.issue(tmp_path, "ann", "ann@example.org")
    ben = authority.issue(tmp_path, "ben", "ben@example.org")
    eve = others.issue(tmp_path, "eve", "ann@example.org")
    tls = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(authority.ca)}
    async with running(FakeEngine(answer=saying("ok")), **tls) as app:

        async def cached(files: tuple[Path, Path]) -> int:
            async with client(app, tls=authority.trusted(*files)) as chat:
                return (await chat.ask("the same words", session_id="s")).finished.cached_tokens

        assert await cached(ann) == 0
        assert await cached(ben) == 0
        assert await cached(ann) > 0
        for stranger in (authority.trusted(), authority.trusted(*eve)):
            async with client(app, tls=stranger) as chat:
                with pytest.raises(ChatError):
                    await chat.ask("x", deadline_s=5)
        trusted = tmp_path / "server-ca.pem"
        trusted.write_bytes(authority.ca.read_bytes())
        authority.ca.write_bytes(others.ca.read_bytes())  # whom the server lets in, from now on
        async with client(app, tls=Tls(trusted, *eve)) as chat:
            await chat.ask("x")
        async with client(app, tls=Tls(trusted, *ann)) as chat:
            with pytest.raises(ChatError):
                await chat.ask("x", deadline_s=5)


@pytest.mark.parametrize("broken", ["certificate", "key", "pair", "client_ca", "missing", "keys"])
async def test_files_that_cannot_be_used_end_the_start_in_one_line(tmp_path: Path, broken: str) -> None:
    authority = Authority.make(tmp_path, "ca")
    cert, key = authority.issue(tmp_path, "server", "127.0.0.1")
    given = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(authority.ca)}
    match broken:
        case "certificate":
            cert.write_text("nonsense")
        case "key":
            key.write_text("-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")
        case "pair":
            key.write_bytes(authority.issue(tmp_path, "other", "127.0.0.1")[1].read_bytes())
        case "client_ca":
            authority.ca.write_text("nonsense")
        case "missing":
            key.unlink()
        case "keys":
            given["keys"] = keys_file(tmp_path, {"name": "a", "hash": "nonsense"})
    app = App(quick(**given), FakeEngine().opener())
    with pytest.raises(StartError) as caught:
        await app.start()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "nonsense" not in str(caught.value)
