"""One question over gRPC, its answer streamed to a terminal or a pipe: what `chat` and `demo` have in common."""

from __future__ import annotations

import secrets
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TextIO

from engine.text.terminal import TerminalText
from service.cli.figures import TurnFigures
from service.client import BadRequestError, ChatClient, ChatError, Delta, Finished, Message, UnavailableError
from service.client.chat import Sampling


class AnswerError(Exception):
    """There is no whole answer. The text is one line for the person; `wrongly_asked` says whose fault it was."""

    def __init__(self, message: str, *, wrongly_asked: bool = False) -> None:
        super().__init__(message)
        self.wrongly_asked = wrongly_asked


@dataclass(slots=True)
class Transcript:
    """The conversation so far. The client keeps it; the server keeps only its KV cache warm, under `session_id`."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    session_id: str = field(default_factory=lambda: secrets.token_hex(16))

    def asking(self, question: str) -> list[Message]:
        """All that the server must read to answer `question`."""
        system = [] if self.system is None else [Message("system", self.system)]
        return [*system, *self.messages, Message("user", question)]

    def remember(self, question: str, answer: str) -> None:
        """Add an exchange. One without a word of answer did not happen."""
        if answer:
            self.messages += [Message("user", question), Message("assistant", answer)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended: `reason` as in service.client.Finished, `text` as the model gave it."""

    reason: str
    text: str
    figures: TurnFigures


async def ask(
    client: ChatClient,
    transcript: Transcript,
    question: str,
    sampling: Sampling,
    output: TextIO,
    deadline_s: float | None = None,
) -> Outcome:
    """Ask, write the answer to `output` as it comes, and add both to `transcript`.

    What was answered before an interruption is remembered too. The written text has no control characters but line ends
    and tabs; the remembered one is the model's own.

    Raises:
        AnswerError: the call failed.
    """
    asked_s = time.monotonic()
    first_s: float | None = None
    finished: Finished | None = None
    said: list[str] = []
    writer = _LineWriter(output)
    messages = transcript.asking(question)
    try:
        fields: Sampling = {**sampling, "session_id": transcript.session_id}
        events = client.stream(messages, deadline_s=deadline_s, **fields)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta):
                    if event.text and first_s is None:
                        first_s = time.monotonic() - asked_s
                    said.append(event.text)
                    writer.write(event.text)
                elif isinstance(event, Finished):
                    finished = event
    except ChatError as error:
        raise _answer_error(error) from None
    finally:
        writer.end()
        transcript.remember(question, "".join(said))
    if finished is None:
        raise AnswerError("the answer ended without its last event; something between here and the server cut it")
    figures = TurnFigures(
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        completion_tokens=finished.completion_tokens,
        first_token_s=first_s,
        total_s=time.monotonic() - asked_s,
        decode_s=finished.decode_s,
        replays=finished.replays,
        eager=finished.eager_steps,
    )
    return Outcome(finished.reason, "".join(said), figures)


class _LineWriter:
    """Writes model text to a terminal safely, at once, and ends it with one line end."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._filter = TerminalText()
        self._last = "\n"

    def write(self, text: str) -> None:
        self._show(self._filter.push(text))

    def end(self) -> None:
        self._show(self._filter.finish())
        if self._last != "\n":
            self._show("\n")

    def _show(self, text: str) -> None:
        if text:
            self._output.write(text)
            self._output.flush()
            self._last = text[-1]


def _answer_error(error: ChatError) -> AnswerError:
    # Without a reason word the call never reached a server of ours: gRPC's own text about sockets follows.
    if isinstance(error, UnavailableError) and not error.reason:
        return AnswerError(f"no server answers: {error}; is `soloist serve` running there?")
    return AnswerError(str(error), wrongly_asked=isinstance(error, BadRequestError))
