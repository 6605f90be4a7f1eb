"""Chat and its companions over real gRPC, with the fake engine behind."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from engine.errors import StepError
from service.app import App
from service.rpc.convert import NOT_SERVED
from service.rpc.status import INTERNAL_TEXT
from soloist.v1 import chat_pb2, chat_pb2_grpc
from tests.contention import contention, in_time
from tests.fakes import END_ID, FakeEngine, endless, saying, text_of
from tests.service.running import in_flight, running, steps, until

FIELD_OF_A_NEWER_PROTO = b"\x98\x06\x01"  # number 99, a varint


def request(content: str = "Hi", **fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(messages=[chat_pb2.Message(role=chat_pb2.ROLE_USER, content=content)], **fields)


def stub_of(app: App) -> tuple[grpc.aio.Channel, chat_pb2_grpc.ChatServiceAsyncStub]:
    channel = grpc.aio.insecure_channel(app.address)
    return channel, chat_pb2_grpc.ChatServiceStub(channel)


async def events_of(call: Any) -> list[chat_pb2.ChatEvent]:
    return [event async for event in call]


def text_of_events(events: Sequence[chat_pb2.ChatEvent]) -> str:
    return "".join(event.delta.text for event in events)


async def test_a_stream_is_one_started_deltas_and_one_finished() -> None:
    async with running(FakeEngine(answer=saying("Paris."))) as app:
        channel, stub = stub_of(app)
        async with channel:
            events = await events_of(stub.Chat(request(seed=5)))

    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"delta"}
    assert events[0].started.model == "fake"
    assert events[0].started.seed == 5
    assert text_of_events(events) == "Paris."
    finished = events[-1].finished
    assert finished.reason == chat_pb2.FINISH_REASON_STOP
    assert finished.stop.token_id == END_ID
    assert finished.usage.completion_tokens == len("Paris.") + 1
    assert finished.graph.replays == finished.usage.completion_tokens


async def test_the_request_id_is_in_the_metadata_and_in_started() -> None:
    async with running() as app:
        channel, stub = stub_of(app)
        async with channel:
            call = stub.Chat(request(), metadata=(("x-request-id", "mine"),))
            metadata = dict(await call.initial_metadata())
            events = await events_of(call)

    assert metadata["x-request-id"] == events[0].started.request_id != "mine"


async def test_indexes_and_ids_of_deltas_join_without_gap() -> None:
    async with running(FakeEngine(answer=saying("αβγ"))) as app:
        channel, stub = stub_of(app)
        async with channel:
            deltas = [e.delta for e in await events_of(stub.Chat(request())) if e.WhichOneof("event") == "delta"]

    ids: list[int] = []
    for delta in deltas:
        assert delta.index == len(ids)
        ids.extend(delta.token_ids)
    assert text_of(ids) == "αβγ"


BEYOND: list[dict[str, Any]] = [
    {"max_tokens": 0},
    *({"temperature": v} for v in (math.nan, math.inf, -1.0, 1e30)),
    *({"top_p": v} for v in (math.nan, -math.inf, 0.0, -1.0, 1.5)),
    *({"min_p": v} for v in (math.nan, -0.5, 2.0)),
    *({"top_k": v} for v in (2**31, 2**32 - 1)),
    *({"repetition_penalty": v} for v in (math.nan, 0.0, -1.0, math.inf, 1e9)),
    *({"presence_penalty": v} for v in (math.nan, math.inf, 1e9)),
    *({"frequency_penalty": v} for v in (math.nan, -math.inf, -1e9)),
    {"stop_token_ids": [2**32 - 1]},
    {"stop_token_ids": [1] * 33},
    {"logit_bias": {2**32 - 1: 1.0}},
    {"logit_bias": {3: math.nan}},
    {"logit_bias": {3: 1e9}},
    {"top_logprobs": 5},
    {"logprobs": True, "top_logprobs": 2**31},
    {"priority": 2**31 - 1},
    {"session_id": "x" * 10_000},
    {"stop": ["x"] * 1000},
]


async def test_eng_01_a_parameter_out_of_range_harms_nobody_else() -> None:
    async with running(FakeEngine(answer=saying("good"))) as app:
        channel, stub = stub_of(app)
        async with channel:
            for fields in BEYOND:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await events_of(stub.Chat(request(**fields), timeout=30))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, fields
                assert next(iter(fields)) in str(caught.value.details()), fields
                assert text_of_events(await events_of(stub.Chat(request(), timeout=30))) == "good"


async def test_txt_11_errors_that_quote_strange_text_arrive() -> None:
    async with running() as app:
        channel, stub = stub_of(app)
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(stub.Chat(request(session_id="naïve\u2028日本\x07"), timeout=30))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

            # A string that is no UTF-8, as a client of another language may send it.
            invalid = request("?").SerializeToString().replace(b"?", b"\xff")
            raw: Any = channel.unary_stream("/soloist.v1.ChatService/Chat")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(raw(invalid, timeout=30))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "UTF-8" in str(caught.value.details())


async def test_a_prompt_longer_than_the_context_is_refused_with_both_counts() -> None:
    async with running(FakeEngine(context=64)) as app:
        channel, stub = stub_of(app)
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(stub.Chat(request("x" * 100)))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the prompt has 107 tokens; the context holds 64" in str(caught.value.details())


async def test_what_is_not_served_is_refused_over_the_wire() -> None:
    async with running() as app:
        channel, stub = stub_of(app)
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(stub.Chat(request(tools=[chat_pb2.Tool(name="f")])))

    assert caught.value.details() == f"tools: {NOT_SERVED}"


async def test_eng_07_a_failing_step_ends_the_stream_with_internal_and_no_insides() -> None:
    engine = FakeEngine(answer=saying("twelve chars"))
    async with running(engine) as app:
        engine.fail(5, StepError("secret of the kernel"))
        channel, stub = stub_of(app)
        async with channel:
            started_s = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(stub.Chat(request(), timeout=30))
            assert in_time(time.monotonic() - started_s, 1.0)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert caught.value.details() == INTERNAL_TEXT
            assert text_of_events(await events_of(stub.Chat(request(), timeout=30))) == "twelve chars"


async def test_eng_08_a_client_that_leaves_stops_the_engine_within_one_step() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            call = stub.Chat(request(max_tokens=2000))
            engine.allow(5)
            await steps(engine, 5)
            call.cancel()
            await until(lambda: all(stream.cancelled_s is not None for stream in app.worker._streams.values()))
            engine.allow(1)  # the step under way
            await until(lambda: in_flight(app) == 0)
            made = engine.decode_steps
            engine.release()
            assert text_of_events(await events_of(stub.Chat(request(max_tokens=4), timeout=30))) == "word"
            assert made <= 6  # five, and the one in flight
            assert engine.decode_steps == made + 4


async def test_promise_11_one_too_many_is_refused_at_once_with_a_time_to_ask_again() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine, queue_depth=2) as app:
        channel, stub = stub_of(app)
        async with channel:
            running_calls = [stub.Chat(request(max_tokens=2)) for _ in range(3)]
            await until(lambda: in_flight(app) == 3)
            started_s = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await events_of(stub.Chat(request()))
            assert in_time(time.monotonic() - started_s, 0.1)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
            assert b"google.rpc.RetryInfo" in details
            engine.release()
            for call in running_calls:
                assert (await events_of(call))[-1].finished.reason == chat_pb2.FINISH_REASON_LENGTH


async def test_promise_11_a_thousand_at_once_end_in_answers_or_quick_refusals() -> None:
    engine = FakeEngine(answer=saying("ok"))
    async with running(engine) as app:
        channels = [grpc.aio.insecure_channel(app.address, (("ch", n),)) for n in range(10)]

        async def one(channel: grpc.aio.Channel) -> str:
            try:
                events = await events_of(chat_pb2_grpc.ChatServiceStub(channel).Chat(request(), timeout=30))
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return text_of_events(events)

        ends = await asyncio.gather(*(one(channels[n % 10]) for n in range(1000)))
        for channel in channels:
            await channel.close()

    assert set(ends) <= {"ok", "RESOURCE_EXHAUSTED"}
    assert ends.count("ok") >= 17


async def test_a_deadline_while_answering_ends_in_finished() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    busy = await asyncio.to_thread(contention)
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            call = stub.Chat(request(), timeout=1.0 * busy)
            engine.allow(3)
            await steps(engine, 3)
            ticker = asyncio.create_task(_allow_slowly(engine))
            events = await events_of(call)
            ticker.cancel()

    assert events[-1].finished.reason == chat_pb2.FINISH_REASON_DEADLINE


async def _allow_slowly(engine: FakeEngine) -> None:
    while True:
        engine.allow(1)
        await asyncio.sleep(0.02)


async def test_information_load_and_counting() -> None:
    async with running(queue_depth=5) as app:
        channel, stub = stub_of(app)
        async with channel:
            info = await stub.GetServerInfo(chat_pb2.GetServerInfoRequest())
            load = await stub.GetLoad(chat_pb2.GetLoadRequest())
            counted = await stub.CountTokens(chat_pb2.CountTokensRequest(messages=request("Hi").messages))
            started = (await events_of(stub.Chat(request("Hi"))))[0].started

    assert (info.model, info.device, info.precision, info.decoder) == ("fake", "cpu", "float32", "native")
    assert (info.limits.context_tokens, info.limits.queue_depth) == (4096, 5)
    assert info.graphs.enabled
    assert (load.active_turns, load.queued_turns, load.draining) == (0, 0, False)
    assert load.kv_tokens_total == 4 * 4096
    assert counted.prompt_tokens == started.prompt_tokens


# Converse.


class Speaker:
    """What a client says on a Converse stream, when the test wants it said."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[chat_pb2.ConverseRequest | None] = asyncio.Queue()

    def say(self, content: str, **fields: Any) -> None:
        self._said.put_nowait(chat_pb2.ConverseRequest(say=request(content, **fields)))

    def interrupt(self) -> None:
        self._said.put_nowait(chat_pb2.ConverseRequest(interrupt=chat_pb2.Interrupt()))

    def end(self) -> None:
        self._said.put_nowait(None)

    async def actions(self) -> AsyncIterator[chat_pb2.ConverseRequest]:
        while (action := await self._said.get()) is not None:
            yield action


async def answer_of(call: Any) -> list[chat_pb2.ChatEvent]:
    """Events up to the next `finished`."""
    events: list[chat_pb2.ChatEvent] = []
    while not events or events[-1].WhichOneof("event") != "finished":
        event = await call.read()
        assert event is not grpc.aio.EOF
        events.append(event)
    return events


async def test_converse_answers_each_thing_said() -> None:
    async with running(FakeEngine(answer=saying("yes"))) as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            for _ in range(3):
                speaker.say("and?")
                assert text_of_events(await answer_of(call)) == "yes"
            speaker.end()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


async def test_converse_is_interrupted_and_goes_on() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            speaker.say("talk", max_tokens=2000)
            engine.allow(3)
            await steps(engine, 3)
            speaker.interrupt()
            ticker = asyncio.create_task(_allow_slowly(engine))
            first = await answer_of(call)
            speaker.say("again", max_tokens=4)
            second = await answer_of(call)
            ticker.cancel()
            speaker.end()

    assert first[-1].finished.reason == chat_pb2.FINISH_REASON_CANCELLED
    assert second[-1].finished.reason == chat_pb2.FINISH_REASON_LENGTH
    assert text_of_events(second) == "word"


async def test_converse_saying_more_interrupts_what_is_being_answered() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            speaker.say("talk", max_tokens=2000)
            engine.allow(3)
            await steps(engine, 3)
            speaker.say("no, this", max_tokens=4)
            ticker = asyncio.create_task(_allow_slowly(engine))
            reasons = [(await answer_of(call))[-1].finished.reason for _ in range(2)]
            ticker.cancel()
            speaker.end()

    assert reasons == [chat_pb2.FINISH_REASON_CANCELLED, chat_pb2.FINISH_REASON_LENGTH]


async def test_converse_what_is_interrupted_before_its_start_has_a_finished_and_nothing_else() -> None:
    engine = FakeEngine(answer=saying("yes"))
    engine.hold()
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            other = stub.Chat(request("first of all"))
            await until(lambda: in_flight(app) == 1)
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            speaker.say("waits its turn")
            await until(lambda: in_flight(app) == 2)
            speaker.interrupt()
            waited = asyncio.create_task(answer_of(call))
            await until(lambda: in_flight(app) == 1)
            engine.release()
            await events_of(other)
            (alone,) = await waited
            speaker.say("at last")
            after = await answer_of(call)
            speaker.end()

    finished = alone.finished
    assert finished.reason == chat_pb2.FINISH_REASON_CANCELLED
    assert (finished.usage.completion_tokens, finished.resume_token) == (0, b"")
    assert after[0].WhichOneof("event") == "started"
    assert text_of_events(after) == "yes"


async def test_converse_each_of_many_says_at_once_has_one_end_in_order() -> None:
    async with running(FakeEngine(answer=saying("yes"))) as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            for number in range(20):
                speaker.say(f"{number}")
                if number % 3 == 0:
                    speaker.interrupt()
            speaker.say("last")
            answers = [await answer_of(call) for _ in range(21)]
            speaker.end()
            assert await call.read() is grpc.aio.EOF

    for answer in answers:
        kinds = [event.WhichOneof("event") for event in answer]
        assert kinds.count("started") <= 1
        assert kinds == ["finished"] or (kinds[0] == "started" and "started" not in kinds[1:])
        if kinds == ["finished"]:
            assert answer[0].finished.reason == chat_pb2.FINISH_REASON_CANCELLED
    started = [answer[0].started.request_id for answer in answers if answer[0].HasField("started")]
    assert started == sorted(started, key=lambda request_id: int(request_id.rsplit("-", 1)[1]))
    assert text_of_events(answers[-1]) == "yes"


async def test_converse_ends_with_the_status_of_what_was_wrong() -> None:
    async with running() as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            speaker.say("x", top_p=2.0)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer_of(call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

            async def nothing() -> AsyncIterator[chat_pb2.ConverseRequest]:
                yield chat_pb2.ConverseRequest()

            with pytest.raises(grpc.aio.AioRpcError, match="say or interrupt"):
                await answer_of(stub.Converse(nothing()))

            async def newer() -> AsyncIterator[chat_pb2.ConverseRequest]:
                yield chat_pb2.ConverseRequest.FromString(FIELD_OF_A_NEWER_PROTO)

            with pytest.raises(grpc.aio.AioRpcError, match="action: carries field number 99"):
                await answer_of(stub.Converse(newer()))


async def test_counting_refuses_a_field_of_a_newer_proto() -> None:
    async with running() as app:
        channel, stub = stub_of(app)
        async with channel:
            message = chat_pb2.Message(role=chat_pb2.ROLE_USER, content="x")
            asked = chat_pb2.CountTokensRequest(messages=[message])
            asked.MergeFromString(FIELD_OF_A_NEWER_PROTO)
            with pytest.raises(grpc.aio.AioRpcError, match="request: carries field number 99"):
                await stub.CountTokens(asked)


async def test_converse_a_client_that_leaves_stops_the_engine() -> None:
    engine = FakeEngine(answer=endless)
    engine.hold()
    async with running(engine) as app:
        channel, stub = stub_of(app)
        async with channel:
            speaker = Speaker()
            call = stub.Converse(speaker.actions())
            speaker.say("talk", max_tokens=2000)
            engine.allow(3)
            await steps(engine, 3)
            call.cancel()
            ticker = asyncio.create_task(_allow_slowly(engine))
            await until(lambda: in_flight(app) == 0)
            ticker.cancel()

    assert engine.decode_steps < 100
