"""One turn, question to answer: from the engine's tokens to whole characters, and to exactly one end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from engine.events import EagerReason
from engine.outputs import Token
from service.errors import TurnFailedError
from service.events import (
    Delta,
    Finished,
    FinishReason,
    GraphUse,
    Logprobs,
    Started,
    TokenLogprob,
    TurnEnd,
    TurnEvent,
    TurnRequest,
)
from service.mailbox import Began, Happening, Made, Over, PromptRead, TurnStream
from service.port import EnginePort
from service.resume import make_token
from service.worker import Worker

# Ends that a reader hears of as `Finished`; every other one is raised.
_REASONS = {
    TurnEnd.STOP: FinishReason.STOP,
    TurnEnd.LENGTH: FinishReason.LENGTH,
    TurnEnd.TOOL_CALLS: FinishReason.TOOL_CALLS,
    TurnEnd.CANCELLED: FinishReason.CANCELLED,
    TurnEnd.DEADLINE: FinishReason.DEADLINE,
    TurnEnd.DRAINING: FinishReason.DRAINING,
}
_COMPLETE = frozenset({TurnEnd.STOP, TurnEnd.LENGTH, TurnEnd.TOOL_CALLS})
_RESUMABLE = frozenset({TurnEnd.CANCELLED, TurnEnd.DEADLINE, TurnEnd.DRAINING})


class Conversations:
    """Turns of one worker. Everything here runs in the worker's event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._playing: dict[str, TurnStream] = {}

    async def turn(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """One `Started`, `Delta`s, one `Finished`; or a domain error in place of what is still to come.

        Close it (`contextlib.aclosing`) or cancel the task that iterates over it, and the engine stops work on the turn
        within one step. A turn that is interrupted before it started ends in `Finished` alone.

        Raises:
            RefusedError, DeadlineExceededError: nothing was done.
            InvalidRequestError: the prompt does not fit into the context.
            TurnFailedError, SlowReaderError, EngineLostError, DrainingError: see `service.errors`.
        """
        stream = self._worker.submit(request)
        self._playing[request.request_id] = stream
        end = TurnEnd.CANCELLED  # unless the reader stays to the end
        try:
            answer = _Answer(stream, self._worker.engine)
            while answer.end is None:
                taken = await stream.take()
                try:
                    events = answer.read(taken)
                except Exception as error:
                    end = TurnEnd.FAILED
                    raise TurnFailedError from error
                for event in events:
                    if isinstance(event, Finished):
                        end = answer.end or end
                    yield event
            if answer.error is not None:
                end = answer.end
                raise answer.error
        except GeneratorExit:
            if stream.stalled and end is TurnEnd.CANCELLED:
                end = TurnEnd.SLOW_READER
            raise
        finally:
            self._playing.pop(request.request_id, None)
            self._worker.release(stream, end)

    def interrupt(self, request_id: str) -> bool:
        """Breaks a turn off: its reader gets `Finished(CANCELLED)`. False if no such turn plays or waits."""
        stream = self._playing.get(request_id)
        if stream is None:
            return False
        self._worker.cancel(stream)
        return True

    def stalled(self, request_id: str) -> None:
        """The turn is about to be closed: not by its reader's wish, but because the way to that reader stays full."""
        if (stream := self._playing.get(request_id)) is not None:
            stream.stalled = True


class _Answer:
    """The account of one answer: what its reader has been given, and how it ended.

    Attributes:
        end: how the turn ended, once it has.
        error: what its reader is to be told in place of `Finished`, if so.
    """

    def __init__(self, stream: TurnStream, engine: EnginePort) -> None:
        self.end: TurnEnd | None = None
        self.error: Exception | None = None
        self._stream = stream
        self._request = stream.request
        self._fingerprint = engine.info.fingerprint
        self._tokenizer = engine.text.tokenizer
        self._text = engine.text.answer(stream.request.stop)
        for token_id in stream.request.emitted:  # its reader has what these show, and not what they hold back
            self._text.push(token_id)
        self._resume_token = b""
        self._began: Began | None = None
        self._prompt_read_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s = 0.0
        self._count = len(stream.request.emitted)  # tokens of the answer, an end token included
        self._said = self._count  # ids given in deltas
        self._replays = 0
        self._eager_steps: dict[str, int] = {}
        self._last: Token | None = None

    def read(self, happenings: list[Happening]) -> list[TurnEvent]:
        """The events for what has come; tokens that came together make one delta. After an end there is no more."""
        events: list[TurnEvent] = []
        made: list[Made] = []
        for happening in happenings:
            if isinstance(happening, Made):
                made.append(happening)
            elif isinstance(happening, Over):
                events += self._say(made)
                if self.end is None:
                    events += self._close(happening)
                return events
            elif isinstance(happening, Began):
                self._began = happening
                events.append(self._started(happening))
                if self._text.stopped is not None:  # a resumed answer that was complete
                    return [*events, self._finish(TurnEnd.STOP)]
            elif isinstance(happening, PromptRead):
                self._prompt_read_s = happening.at_s
                for why, steps in happening.repeated.items():
                    self._count_steps(why, steps)
        return events + self._say(made)

    def _started(self, began: Began) -> Started:
        request = self._request
        self._resume_token = make_token(request, self._fingerprint, began.history, began.read)
        return Started(
            request_id=request.request_id,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=began.cached,
            queue_s=began.at_s - self._stream.admitted_s,
            seed=request.sampling.seed,
            resumed=request.resumed,
            resume_token=self._resume_token,
        )

    def _say(self, made: list[Made]) -> list[TurnEvent]:
        """One delta for these tokens, as far as a stop text lets them be said; the end, if it does not."""
        index, text = self._said, ""
        token_ids: list[int] = []
        logprobs: list[Logprobs] = []
        for one in made:
            self._take(one)
            if one.token.end:
                break
            text += self._text.push(one.token.token_id)
            token_ids.append(one.token.token_id)
            if self._request.sampling.logprobs:
                logprobs.append(self._logprobs(one.token))
            if self._text.stopped is not None:
                break
        self._said += len(token_ids)
        events: list[TurnEvent] = []
        if token_ids:
            events.append(Delta(index, text, tuple(token_ids), tuple(logprobs)))
        if self._text.stopped is not None:
            events.append(self._finish(TurnEnd.STOP))
        return events

    def _take(self, made: Made) -> None:
        if self._first_token_s is None:
            self._first_token_s = made.at_s
        self._last_token_s = made.at_s
        self._last = made.token
        self._count += 1
        self._stream.given = self._count - len(self._request.emitted)
        self._count_steps(made.token.eager, 1)

    def _count_steps(self, why_eager: EagerReason | None, steps: int) -> None:
        if why_eager is None:
            self._replays += steps
        else:
            self._eager_steps[why_eager.value] = self._eager_steps.get(why_eager.value, 0) + steps

    def _close(self, over: Over) -> list[TurnEvent]:
        """The turn's end as the worker tells it: the held-back tail and `Finished`, or an error."""
        events: list[TurnEvent] = []
        # What is held back may yet become a stop text or a whole character once a broken-off answer is resumed.
        if over.end in _COMPLETE and (tail := self._text.finish()):
            events.append(Delta(self._said, tail, ()))
        if over.end in _REASONS:
            events.append(self._finish(over.end))
        else:
            self.end = over.end
            self.error = over.error
            if over.end is TurnEnd.FAILED or over.error is None:
                self.error = TurnFailedError()
                self.error.__cause__ = over.error
        return events

    def _finish(self, end: TurnEnd) -> Finished:
        self.end = end
        began_s = self._began.at_s if self._began is not None else None
        first_s = self._first_token_s
        last = self._last
        return Finished(
            reason=_REASONS[end],
            prompt_tokens=len(self._request.prompt_ids),
            completion_tokens=self._count,
            cached_tokens=self._began.cached if self._began is not None else 0,
            graph=GraphUse(self._replays, dict(self._eager_steps)),
            queue_s=(self._worker_s if began_s is None else began_s) - self._stream.admitted_s,
            prefill_s=_between(began_s, self._prompt_read_s),
            first_token_s=None if first_s is None else _between(began_s, first_s),
            decode_s=_between(first_s, self._last_token_s),
            stop_text=self._text.stopped,
            stop_token_id=last.token_id if end is TurnEnd.STOP and last is not None and last.end else None,
            resume_token=self._resume_token if end in _RESUMABLE else b"",
        )

    @property
    def _worker_s(self) -> float:
        return self._stream.over.at_s if self._stream.over is not None else self._stream.admitted_s

    def _logprobs(self, token: Token) -> Logprobs:
        return Logprobs(
            self._logprob(token.token_id, token.logprob or 0.0), tuple(self._logprob(*entry) for entry in token.top)
        )

    def _logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token_id, logprob, self._tokenizer.token_bytes(token_id))


def _between(from_s: float | None, to_s: float | None) -> float:
    return to_s - from_s if from_s is not None and to_s is not None else 0.0
