"""OpenAI's own client against a gateway in front of a server with the fake engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from openai import APIError, AuthenticationError, BadRequestError, InternalServerError, NotFoundError, RateLimitError

from engine.errors import FatalDeviceError
from service.gateway.sse import comment
from service.keys import hash_of, new_key
from tests.fakes import FIRST_BYTE_ID, endless, ids_of, saying
from tests.service.gateway.running import CHAT, HELLO, NotingEngine, gateway
from tests.service.running import in_flight, running, until

ANSWER = "Grüße, 안녕! one two three four"
USER = HELLO["messages"]


async def test_a_whole_answer_with_its_usage_and_figures() -> None:
    async with running(NotingEngine(answer=saying(ANSWER))) as app, gateway(app.address) as gate:
        answer = await (await gate.openai()).chat.completions.create(model="fake", messages=USER)

    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert (answer.model, answer.system_fingerprint) == ("fake", "fake-fingerprint")
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert choice.logprobs is None
    tokens = len(ids_of(ANSWER)) + 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + tokens
    extension = answer.model_extra["soloist"]
    assert (extension["replays"], extension["eager_steps"], extension["finish_reason"]) == (tokens, {}, "stop")


async def test_a_stream_of_chunks() -> None:
    async with running(NotingEngine(answer=saying(ANSWER))) as app, gateway(app.address) as gate:
        stream = await (await gate.openai()).chat.completions.create(
            model="fake", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ids_of(ANSWER)) + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_every_field_of_the_turn_comes_to_the_engine(*, stream: bool) -> None:
    engine = NotingEngine(answer=saying("Hi"))
    async with running(engine) as app, gateway(app.address) as gate:
        answer = await (await gate.openai()).chat.completions.create(
            model="fake",
            messages=USER,
            stream=stream,
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.75,
            stop=["END"],
            seed=-2,
            logprobs=True,
            top_logprobs=2,
            logit_bias={str(FIRST_BYTE_ID): 1},
            presence_penalty=0.5,
            frequency_penalty=0.25,
            response_format={"type": "text"},
            n=1,
            user="somebody",
            extra_body={
                "top_k": 7,
                "min_p": 0.125,
                "repetition_penalty": 1.5,
                "stop_token_ids": [9],
                "priority": 3,
                "session_id": "s",
            },
        )
        if stream:
            entries = [
                entry
                async for chunk in answer
                for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
            ]
        else:
            entries = answer.choices[0].logprobs.content
        sessions = app.worker.load()
    [params] = engine.params
    assert params.max_tokens == 9
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.75, 7, 0.125)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, 0.5, 0.25)
    assert (params.seed, params.stop_token_ids, params.logit_bias) == (2**64 - 2, (9,), {FIRST_BYTE_ID: 1.0})
    assert (params.logprobs, params.top_logprobs) == (True, 2)
    assert sessions is not None
    texts = [entry for entry in entries if entry.token]
    assert "".join(entry.token for entry in texts) == "Hi"
    assert bytes(texts[0].bytes or ()) == b"H"
    assert texts[0].logprob == -0.5
    assert [other.logprob for other in texts[0].top_logprobs] == [-1.0, -2.0]


async def test_a_session_is_named_in_the_body_or_in_a_header() -> None:
    async with running(NotingEngine(answer=saying("Hi"))) as app, gateway(app.address) as gate:
        asking = (await gate.openai()).chat.completions
        first = await asking.create(model="fake", messages=USER, extra_body={"session_id": "s"})
        again = await asking.create(model="fake", messages=USER, extra_headers={"X-Session-Id": "s"})
        with pytest.raises(BadRequestError, match="differs from the header"):
            await asking.create(
                model="fake", messages=USER, extra_headers={"X-Session-Id": "s"}, extra_body={"session_id": "t"}
            )
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, again)]
    assert cached[0] == 0
    assert cached[1] is not None
    assert cached[1] > 0


async def test_completions_whole_and_streamed() -> None:
    async with running(NotingEngine(answer=saying(ANSWER))) as app, gateway(app.address) as gate:
        asking = (await gate.openai()).completions
        whole = await asking.create(model="fake", prompt="Once", max_tokens=12, logprobs=1)
        stream = await asking.create(
            model="fake", prompt="Once", max_tokens=100, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.object == "text_completion"
    assert whole.choices[0].finish_reason == "length"
    assert ANSWER.startswith(whole.choices[0].text)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == 12
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage is not None


async def test_models_and_their_other_names() -> None:
    async with running() as app, gateway(app.address, model_names=("gpt-4o", "org/model")) as gate:
        models = (await gate.openai()).models
        assert [model.id async for model in models.list()] == ["fake", "gpt-4o", "org/model"]
        assert (await models.retrieve("fake")).owned_by == "soloist"
        assert (await models.retrieve("org/model")).id == "org/model"
        with pytest.raises(NotFoundError):
            await models.retrieve("other")
        named = await (await gate.openai()).chat.completions.create(model="gpt-4o", messages=USER)
        assert named.model == "fake"
        with pytest.raises(NotFoundError, match="'fake' is served") as caught:
            await (await gate.openai()).chat.completions.create(model="other", messages=USER)
    assert caught.value.code == "model_not_found"


async def test_a_refusal_of_the_servers_comes_with_the_name_that_the_caller_used() -> None:
    async with running() as app, gateway(app.address) as gate:
        asking = (await gate.openai()).chat.completions
        with pytest.raises(BadRequestError) as caught:
            await asking.create(model="fake", messages=USER, max_completion_tokens=0)
        assert caught.value.param == "max_completion_tokens"
        with pytest.raises(BadRequestError) as caught:
            await asking.create(model="fake", messages=[{"role": "user", "content": "x" * 5000}])
        assert caught.value.code == "context_length_exceeded"
        lone = await gate.web.post(
            CHAT,
            content=rb'{"messages":[{"role":"user","content":"\ud800"}]}',
            headers={"content-type": "application/json"},
        )
        assert (lone.status_code, lone.json()["error"]["param"]) == (400, "messages[0].content")
        with pytest.raises(BadRequestError, match="tools are not served") as caught:
            await asking.create(
                model="fake",
                messages=USER,
                tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
            )
        assert (caught.value.param, caught.value.type) == ("tools", "invalid_request_error")


async def test_a_full_queue_says_when_to_ask_again() -> None:
    engine = NotingEngine(answer=endless)
    async with running(engine, queue_depth=1) as app, gateway(app.address) as gate:
        engine.hold()
        asking = (await gate.openai()).chat.completions
        streams = [asyncio.create_task(asking.create(model="fake", messages=USER, stream=True)) for _ in range(2)]
        await until(lambda: in_flight(app) == 2)
        with pytest.raises(RateLimitError) as caught:
            await asking.create(model="fake", messages=USER)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.cancel()
        engine.release()
        await until(lambda: in_flight(app) == 0)


async def test_a_key_is_passed_to_the_server(tmp_path: Path) -> None:
    key = new_key()
    keys, own = tmp_path / "keys.yaml", tmp_path / "own"
    keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n", encoding="utf-8")
    own.write_text(key, encoding="ascii")
    async with running(NotingEngine(answer=saying("Hi")), keys=str(keys)) as app:
        async with gateway(app.address) as gate:
            known = await (await gate.openai(api_key=key)).chat.completions.create(model="fake", messages=USER)
            assert known.choices[0].message.content == "Hi"
            with pytest.raises(AuthenticationError) as caught:
                await (await gate.openai(api_key="sk-wrong")).chat.completions.create(model="fake", messages=USER)
            assert caught.value.code == "invalid_api_key"
            assert caught.value.response.headers["www-authenticate"] == "Bearer"
            assert (await gate.ask(HELLO)).status_code == 401
            assert (await gate.ask(HELLO, Authorization="Basic eA==")).status_code == 401
            assert (await gate.web.get("/v1/models")).status_code == 401
            assert (await gate.web.get("/readyz")).status_code == 200, "who asks for a key is there"
        async with gateway(app.address, api_key_file=str(own)) as gate:
            assert (await gate.ask(HELLO)).status_code == 200, "the gateway's own key, for who sends none"
            assert (await gate.ask(HELLO, Authorization="Bearer sk-wrong")).status_code == 401


async def test_comments_break_long_silences_and_clients_pass_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    comments: list[bytes] = []

    def noted(text: str) -> bytes:
        comments.append(f": {text}\n".encode())
        return comments[-1]

    monkeypatch.setattr("service.gateway.sse.comment", noted)
    monkeypatch.setattr("service.gateway.writing.LONGEST_SILENCE_S", 0.05)
    engine = NotingEngine(answer=saying(ANSWER))
    async with running(engine) as app, gateway(app.address) as gate:
        engine.hold()
        asking = (await gate.openai()).chat.completions
        stream = await asking.create(model="fake", messages=USER, stream=True)
        await until(lambda: len(comments) >= 2)
        engine.allow(4)
        said = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        before = len(comments)
        await until(lambda: len(comments) >= before + 2)
        engine.release()
        said += [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(said) == ANSWER
    assert comment("x") == b": x\n", "a blank line would be an event to clients that have seen an id"


async def test_an_answer_that_breaks_ends_its_stream_with_an_error() -> None:
    engine = NotingEngine(answer=saying(ANSWER))
    async with running(engine) as app, gateway(app.address) as gate:
        engine.fail(4, RuntimeError("a bug"))
        stream = await (await gate.openai()).chat.completions.create(model="fake", messages=USER, stream=True)
        with pytest.raises(APIError, match="internal error"):
            _ = [chunk.choices[0].delta.content async for chunk in stream]
        engine.fail(4, RuntimeError("a bug"))
        with pytest.raises(InternalServerError):
            await (await gate.openai()).chat.completions.create(model="fake", messages=USER)


async def test_an_answer_goes_on_on_another_server() -> None:
    engines = [NotingEngine(answer=saying(ANSWER)) for _ in range(2)]
    async with running(engines[0]) as one, running(engines[1]) as two, gateway(one.address, two.address) as gate:
        engines[0].fail(5, FatalDeviceError("the device is lost"))
        answer = await (await gate.openai()).chat.completions.create(model="fake", messages=USER)
    assert answer.choices[0].message.content == ANSWER
    assert answer.model_extra["soloist"]["resumed"] == 1
