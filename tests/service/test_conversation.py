"""service.conversation: whole characters, stop texts, exactly one end."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from engine.events import EagerReason
from engine.params import SamplingParams
from service.errors import EngineLostError, TurnFailedError
from service.events import Delta, Finished, FinishReason, Started, TurnEnd, TurnEnded, TurnEvent
from service.scheduler import Limits
from tests.contention import in_time
from tests.fakes import END_ID, FakeAnswerText, FakeEngine, endless, ids_of, saying
from tests.service.core import finished, ids, running, text


async def test_a_turn_is_one_started_deltas_one_finished() -> None:
    async with running(FakeEngine(answer=saying("Hello there."))) as core:
        events = await core.play(core.request("Hi"))
        assert isinstance(events[0], Started)
        assert all(isinstance(event, Delta) for event in events[1:-1])
        end = finished(events)
        assert text(events) == "Hello there."
        assert ids(events) == ids_of("Hello there.")
        assert (end.reason, end.stop_token_id, end.stop_text) == (FinishReason.STOP, END_ID, None)
        assert end.completion_tokens == len("Hello there.") + 1
        assert end.graph.replays == end.completion_tokens == core.engine.decode_steps
        assert end.first_token_s is not None
        assert end.queue_s >= 0
        assert end.first_token_s >= end.prefill_s >= 0
        assert end.decode_s >= 0


async def test_promise_5_eager_steps_are_counted_by_reason() -> None:
    async with running(FakeEngine(eager=EagerReason.NO_CUDA)) as core:
        end = finished(await core.play(core.request()))
        assert end.graph.replays == 0
        assert end.graph.eager_steps == {"no_cuda": end.completion_tokens}
        await core.idle()
        told = core.ends()[0]
        assert told.eager_steps == {"no_cuda": core.engine.decode_steps}
        assert told.replays == 0


async def test_max_tokens_ends_in_length() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        end = finished(await core.play(core.request(sampling=SamplingParams(max_tokens=7))))
        assert (end.reason, end.completion_tokens, end.stop_token_id) == (FinishReason.LENGTH, 7, None)


async def test_a_full_context_ends_in_length() -> None:
    async with running(FakeEngine(answer=endless, context=20)) as core:
        request = core.request("Hi")
        end = finished(await core.play(request))
        assert end.reason is FinishReason.LENGTH
        assert end.completion_tokens == 20 - len(request.prompt_ids) + 1


async def test_a_stop_token_of_the_caller_ends_the_answer() -> None:
    sampling = SamplingParams(stop_token_ids=tuple(ids_of("!")))
    async with running(FakeEngine(answer=saying("Stop! No."))) as core:
        events = await core.play(core.request(sampling=sampling))
        assert text(events) == "Stop"
        assert finished(events).stop_token_id == ids_of("!")[0]


@pytest.mark.parametrize("slow", [False, True])
async def test_txt_04_a_stop_text_over_many_tokens_ends_the_turn_and_the_work(slow: bool) -> None:
    async with running(FakeEngine(answer=saying("one two END " + "x" * 3000))) as core:
        if slow:
            core.engine.hold()
            core.engine.allow(11)
        events = await core.play(core.request(stop=("END", "never")))
        core.engine.release()
        end = finished(events)
        assert text(events) == "one two "
        assert (end.reason, end.stop_text, end.stop_token_id) == (FinishReason.STOP, "END", None)
        assert end.completion_tokens == end.graph.replays == len("one two END")
        await core.idle()
        told = core.ends()[0]
        assert told.end is TurnEnd.STOP
        assert told.completion_tokens + told.discarded_tokens == told.replays == core.engine.decode_steps
        assert core.engine.decode_steps < 3000
        assert told.cancel_to_idle_s is None


async def test_txt_05_a_tail_that_might_have_been_a_stop_text_is_said() -> None:
    async with running(FakeEngine(answer=saying("the EN"))) as core:
        events = await core.play(core.request(stop=("END",)))
        assert text(events) == "the EN"
        assert ids(events) == ids_of("the EN")


async def test_a_broken_off_answer_keeps_back_what_might_yet_be_a_stop_text() -> None:
    """Resumed, it may become one; shown now, the reader's text would be no prefix of the right one."""
    async with running(FakeEngine(answer=saying("the EN"))) as core:
        core.engine.hold()
        core.engine.allow(5)
        turn = asyncio.create_task(core.play(core.request(stop=("END",))))
        assert await asyncio.to_thread(core.engine.wait_for_steps, 5)
        core.worker.drain(grace_s=0.0)
        core.engine.release()
        events = await turn
        assert finished(events).reason is FinishReason.DRAINING
        assert text(events) == "the "


async def test_txt_03_text_is_whole_characters() -> None:
    answer = "한국어 ok 你好 👍"
    async with running(FakeEngine(answer=saying(answer))) as core:
        core.engine.hold()
        turn = asyncio.create_task(core.play(core.request()))
        for step in range(1, len(answer.encode()) + 2):  # one token at a time crosses to the loop
            core.engine.allow(1)
            assert await asyncio.to_thread(core.engine.wait_for_steps, step)
        core.engine.release()
        events = await turn
        assert text(events) == answer
        assert not any("�" in event.text for event in events if isinstance(event, Delta))


async def test_logprobs_come_with_their_bytes() -> None:
    async with running(FakeEngine(answer=saying("ab"))) as core:
        events = await core.play(core.request(sampling=SamplingParams(logprobs=True, top_logprobs=2)))
        found = [logprobs for event in events if isinstance(event, Delta) for logprobs in event.logprobs]
        assert [one.chosen.token_bytes for one in found] == [b"a", b"b"]
        assert all(len(one.top) == 2 for one in found)


async def test_a_session_pays_only_for_what_is_new() -> None:
    async with running() as core:
        await core.play(core.request("a long question", session_id="s"))
        end = finished(await core.play(core.request("a long question", session_id="s")))
        assert end.cached_tokens == end.prompt_tokens - 1
        assert finished(await core.play(core.request("a long question"))).cached_tokens == 0
        assert finished(await core.play(core.request("a long question", session_id="s", caller="b"))).cached_tokens == 0


async def test_an_interrupted_turn_finishes_as_cancelled() -> None:
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.hold()
        core.engine.allow(3)
        request = core.request()
        turn = asyncio.create_task(core.play(request))
        waiting_request = core.request()
        waiting = asyncio.create_task(core.play(waiting_request))
        await core.until(lambda: core.engine.decode_steps == 3 and core.worker.load().queued_turns == 1)
        assert core.conversations.interrupt(waiting_request.request_id)
        assert core.conversations.interrupt(request.request_id)
        assert not core.conversations.interrupt("nobody")
        core.engine.release()
        end = finished(await turn)
        assert end.reason is FinishReason.CANCELLED
        assert 3 <= end.completion_tokens <= 4
        assert await waiting == [finished(await waiting)]
        assert not core.conversations.interrupt(request.request_id)
        await core.idle()
        assert {end.end for end in core.ends()} == {TurnEnd.CANCELLED}


async def test_rpc_03_a_dead_worker_is_an_error_and_never_a_cancellation() -> None:
    """Nobody cancelled the reader's task: it must hear of an error, within a second."""
    async with running(FakeEngine(answer=endless)) as core:
        core.engine.fail(5, SystemExit(1))
        seen: list[TurnEvent] = []

        async def read() -> None:
            async for event in core.conversations.turn(core.request()):
                seen.append(event)  # noqa: PERF401 what came before the error counts

        began_s = time.monotonic()
        with pytest.raises(EngineLostError):
            await asyncio.wait_for(read(), 30)
        assert in_time(time.monotonic() - began_s, 1.0)
        assert len(ids(seen)) == 5


async def test_a_detokeniser_that_fails_ends_its_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FakeAnswerText, token_id: int) -> str:
        raise LookupError(token_id)

    async with running(FakeEngine(answer=endless)) as core:
        with monkeypatch.context() as patch:
            patch.setattr(FakeAnswerText, "push", broken)
            with pytest.raises(TurnFailedError) as failed:
                await core.play(core.request())
        assert isinstance(failed.value.__cause__, LookupError)
        await core.idle()
        assert core.ends()[0].end is TurnEnd.FAILED
        assert core.engine.contexts_open == 0


async def test_leaving_after_the_end_is_no_cancellation() -> None:
    async with running(FakeEngine(answer=saying("x"))) as core:
        async with aclosing(core.conversations.turn(core.request())) as turn:
            async for event in turn:
                if isinstance(event, Finished):
                    break
        await core.idle()
        assert core.ends()[0].end is TurnEnd.STOP


async def test_tokens_that_came_together_are_one_delta() -> None:
    async with running(FakeEngine(answer=endless), Limits(reader_window=1000)) as core:
        turn = core.conversations.turn(core.request(sampling=SamplingParams(max_tokens=100)))
        events = [await anext(turn)]
        assert core.engine.wait_for_steps(100)  # blocks this loop on purpose
        events += [event async for event in turn]
        assert len(ids(events)) == 100
        assert sum(isinstance(event, Delta) for event in events) < 10


async def test_every_admitted_turn_is_told_of_once() -> None:
    async with running() as core:
        await asyncio.gather(*(core.play(core.request(str(n))) for n in range(8)))
        await core.idle()
        ended = [fact.request_id for fact in core.facts if isinstance(fact, TurnEnded)]
        assert len(ended) == len(set(ended)) == 8
