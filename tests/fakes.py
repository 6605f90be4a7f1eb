"""Fakes that are real classes: an engine with the whole interface of `engine.Engine` and no model.

`FakeEngine` answers deterministically from the tokens that its context holds, counts everything it does, fails where it
is told to, and can be held between two steps, so that no test sleeps to wait for something. Ids are bytes + 3; 2 ends.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import ContextLengthError, InvalidRequestError, ReplayError, StepError
from engine.events import EagerReason, EngineEvent, Listener, PrefillDone, Progress, StepDone, VerifyMismatch, ignore
from engine.history import Resumption
from engine.outputs import Prefilled, Replayed, Token, TurnStep
from engine.params import SamplingParams
from engine.text import AnswerForm
from engine.text.grammar import Grammar

BOS_ID, END_ID, FIRST_BYTE_ID = 1, 2, 3
HOLD_LIMIT_S = 20.0  # a test that forgets to release a held engine fails instead of hanging


class MessageLike(Protocol):
    """What `prompt_ids` reads of a message."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


def ids_of(text: str) -> list[int]:
    """The fake's ids of plain text: one a byte."""
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


def text_of(ids: Iterable[int]) -> str:
    """The text of ids, control ids left out."""
    return b"".join(FakeTokenizer().token_bytes(token_id) for token_id in ids).decode(errors="replace")


def echo(prompt_ids: Sequence[int]) -> list[int]:
    """The default answer: names a digest of everything read, then repeats the last line of the prompt."""
    digest = hashlib.sha256(repr(list(prompt_ids)).encode()).hexdigest()[:8]
    last = text_of(prompt_ids).rstrip("\n").rsplit("\n", 1)[-1]
    return ids_of(f"[{digest}] {last}")


def endless(prompt_ids: Sequence[int]) -> list[int]:
    """An answer that only a limit ends."""
    return ids_of("word " * 2_000)


def saying(text: str) -> Callable[[Sequence[int]], list[int]]:
    """An answer that is always `text`."""
    return lambda _prompt: ids_of(text)


class FakeTokenizer:
    """One id a byte."""

    vocabulary = FIRST_BYTE_ID + 256
    control_ids = frozenset({0, BOS_ID, END_ID})
    bos_id = BOS_ID

    def encode(self, text: str) -> list[int]:
        return ids_of(text)

    def decode(self, ids: Iterable[int]) -> str:
        return text_of(ids)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id - FIRST_BYTE_ID]) if token_id >= FIRST_BYTE_ID else b""


class FakeAnswerText:
    """Whole characters only; holds back what may begin a stop text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._bytes = b""
        self._held = ""
        self.stopped: str | None = None

    def push(self, token_id: int) -> str:
        if self.stopped is not None:
            return ""
        self._bytes += FakeTokenizer().token_bytes(token_id)
        try:
            whole, self._bytes = self._bytes.decode(), b""
        except UnicodeDecodeError:
            return ""
        self._held += whole
        for stop in self._stop:
            if (at := self._held.find(stop)) >= 0:
                shown, self._held, self.stopped = self._held[:at], "", stop
                return shown
        keep = max((n for s in self._stop for n in range(len(s)) if n and self._held.endswith(s[:n])), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        tail, self._held, self._bytes = self._held + self._bytes.decode(errors="replace"), "", b""
        return tail


class FakeChatText:
    """A trivial template: `role:content` a line."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.end_ids = frozenset({END_ID})

    def prompt_ids(self, messages: Sequence[MessageLike], tools: object = None, room: int | None = None) -> list[int]:
        return [BOS_ID, *ids_of("".join(f"{m.role}:{m.content}\n" for m in messages))]

    def answer(self, stop: Sequence[str] = ()) -> FakeAnswerText:
        return FakeAnswerText(stop)

    def grammar(self, form: AnswerForm) -> Grammar:
        raise InvalidRequestError(form.field, "the fake knows no grammar")


@dataclass(frozen=True, slots=True)
class FakeGraphState:
    """What the real engine says of its graphs."""

    enabled: bool = True
    captured: int = 2
    pool_bytes: int = 4096
    context: int = 4096
    eager_reason: EagerReason | None = None


@dataclass(frozen=True, slots=True)
class FakeInfo:
    """What the real engine says of itself."""

    name: str = "fake"
    architecture: object = None
    context: int = 4096
    slots: int = 4
    device: str = "cpu"
    precision: str = "float32"
    decoder: str = "native"
    fingerprint: str = "fake-fingerprint"
    threads: int = 1
    kv_bytes: int = 1 << 20
    packed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FakeDefaults:
    """The model's generation config: nothing set."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: tuple[int, ...] = (END_ID,)
    bos_id: int | None = BOS_ID


class FakeContext:
    """One slot."""

    def __init__(self, engine: FakeEngine, number: int) -> None:
        self._engine = engine
        self.number = number
        self.held: list[int] = []
        self.closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.held)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._engine.contexts_open -= 1


@dataclass(frozen=True, slots=True)
class FakeSaved:
    """What a context held. A token takes as many bytes as in the engine's cache."""

    tokens: tuple[int, ...]
    bytes: int


@dataclass
class Fault:
    """Raise `error` when a turn has made `after_tokens` tokens; -1 raises before the prefill's first yield."""

    after_tokens: int
    error: BaseException


class FakeEngine:
    """An engine without a model.

    Attributes:
        answer: prompt ids -> ids of the whole answer, the end token left out.
        eager: the reason that every step gives for being no replay, or None for replays.
        faults: each next turn takes one from the front; None lets that turn live.
        prefill_steps, decode_steps: work done. contexts_open, contexts_opened: slots.
        saves, restores: contexts that went to host memory and came back. save_fault: what saving raises.
        self_checks: how many were made. check_mismatch: whether they find replay and eager twin apart.
        played: (context number, "prefill" | "decode") of every step in order.
        prompts: every prompt that began, in order.
        threads: idents of the threads that called it.
        held: set while a step waits for `allow` or `release`.
    """

    def __init__(
        self,
        *,
        answer: Callable[[Sequence[int]], list[int]] = echo,
        slots: int = 4,
        context: int = 4096,
        prefill_chunk: int = 512,
        eager: EagerReason | None = None,
        listener: Listener = ignore,
    ) -> None:
        self.info = FakeInfo(slots=slots, context=context)
        self.text = FakeChatText()
        self.defaults = FakeDefaults()
        self.answer = answer
        self.eager = eager
        self.listener = listener
        self.faults: list[Fault | None] = []
        self.prefill_steps = self.decode_steps = 0
        self.contexts_open = self.contexts_opened = 0
        self.saves = self.restores = 0
        self.save_fault: Exception | None = None
        self.self_checks = 0
        self.check_mismatch = False
        self.played: list[tuple[int, str]] = []
        self.prompts: list[tuple[int, ...]] = []
        self.threads: set[int] = set()
        self.closed = False
        self._prefill_chunk = prefill_chunk
        self._holding = False
        self._hold_limit_s = HOLD_LIMIT_S
        self._death: BaseException | None = None
        self._may_step = threading.Semaphore(0)
        self.held = threading.Event()
        self._stepped = threading.Condition()

    # What a test does to it.

    def opener(self) -> Callable[[Listener], FakeEngine]:
        """A factory for the worker: tells of a load, then gives this engine."""

        def open_(listener: Listener) -> FakeEngine:
            self.listener = listener
            for done in (50, 100):
                self._tell(Progress("load", done, 100, "bytes"))
            return self

        return open_

    def fail(self, after_tokens: int, error: BaseException) -> None:
        """The next turn that begins raises `error` after that many tokens."""
        self.faults.append(Fault(after_tokens, error))

    def hold(self, limit_s: float = HOLD_LIMIT_S) -> None:
        """From now on every decode step waits for `allow` or `release`, at most so long."""
        self._holding = True
        self._hold_limit_s = limit_s

    def allow(self, steps: int) -> None:
        """Lets a held engine make that many more steps."""
        self._may_step.release(steps)

    def die(self, error: BaseException) -> None:
        """The next decode step of a held engine raises `error`."""
        self._death = error
        self._may_step.release(1)

    def release(self) -> None:
        """Ends the hold."""
        self._holding = False
        self._may_step.release(1_000)

    def wait_for_steps(self, decode_steps: int, timeout_s: float = 30.0) -> bool:
        """Blocks (call it in a thread) until so many decode steps were made in all."""
        with self._stepped:
            return self._stepped.wait_for(lambda: self.decode_steps >= decode_steps, timeout_s)

    # The engine's interface.

    @property
    def graphs(self) -> FakeGraphState:
        return FakeGraphState(enabled=self.eager is None, eager_reason=self.eager)

    def open_context(self) -> FakeContext:
        self.threads.add(threading.get_ident())
        if self.contexts_open >= self.info.slots:
            raise StepError(f"all {self.info.slots} KV slots are taken")
        self.contexts_open += 1
        self.contexts_opened += 1
        return FakeContext(self, self.contexts_opened)

    def self_check(self) -> bool:
        self.self_checks += 1
        if self.check_mismatch:
            self._tell(VerifyMismatch("fake", 255, 1, 2))
        return self.eager is None

    def save(self, context: FakeContext) -> FakeSaved:
        self.threads.add(threading.get_ident())
        self.saves += 1
        if self.save_fault is not None:
            raise self.save_fault
        per_token = self.info.kv_bytes // (self.info.slots * self.info.context)
        return FakeSaved(context.tokens, per_token * len(context.held))

    def restore(self, saved: FakeSaved) -> FakeContext:
        self.restores += 1
        context = self.open_context()
        context.held.extend(saved.tokens)
        return context

    def generate(
        self,
        context: FakeContext,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        resumption: Resumption | None = None,
    ) -> Generator[TurnStep, None, None]:
        self.threads.add(threading.get_ident())
        fault = self.faults.pop(0) if self.faults else None
        if context.closed:
            raise AssertionError("generate on a closed context")
        if len(prompt_ids) > self.info.context:
            raise ContextLengthError(len(prompt_ids), self.info.context)
        self.prompts.append(tuple(prompt_ids))
        if fault is not None and fault.after_tokens < 0:
            raise fault.error
        yield from self._prefill(context, list(prompt_ids))
        room = self.info.context - len(prompt_ids) + 1
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        prompt = list(prompt_ids)
        answer = [*self.answer(prompt), END_ID]
        read = [*prompt, *answer]
        emitted = resumption.emitted if resumption is not None else ()
        for made in range(min(limit, len(answer)) if len(emitted) < limit else 0):
            if fault is not None and made == fault.after_tokens:
                raise fault.error
            self._step(context)
            at = len(prompt) - 1 + made
            if len(context.held) != at or context.held[-1:] != read[at - 1 : at]:
                raise AssertionError("another turn wrote into this context")
            context.held.append(read[at])
            token_id = answer[made]
            if made < len(emitted):
                if emitted[made] != token_id:
                    raise ReplayError(made, emitted[made], token_id)
                yield Replayed(self.eager)
                continue
            end = token_id == END_ID or token_id in params.stop_token_ids
            logprob = -0.5 if params.logprobs else None
            top = tuple((FIRST_BYTE_ID + n, -1.0 - n) for n in range(params.top_logprobs))
            yield Token(token_id, end, self.eager, logprob, top)
            if end:
                return

    def close(self) -> None:
        self.closed = True

    def _prefill(self, context: FakeContext, prompt: list[int]) -> Generator[TurnStep, None, None]:
        cached = 0
        while cached < min(len(context.held), len(prompt) - 1) and context.held[cached] == prompt[cached]:
            cached += 1
        del context.held[cached:]
        yield Prefilled(cached, cached, len(prompt))
        last = len(prompt) - 1  # its step makes the first token
        for at in range(cached, last, self._prefill_chunk):
            self.prefill_steps += 1
            self.played.append((context.number, "prefill"))
            chunk = prompt[at : min(at + self._prefill_chunk, last)]
            context.held.extend(chunk)
            self._tell(PrefillDone(len(chunk), 0.0))
            yield Prefilled(cached, len(context.held), len(prompt))

    def _step(self, context: FakeContext) -> None:
        if self._holding:
            self.held.set()
            if not self._may_step.acquire(timeout=self._hold_limit_s):
                raise AssertionError("the test held the engine and never released it")
            self.held.clear()
        if self._death is not None:
            raise self._death
        time.sleep(0)  # lets other threads have the interpreter, as a step on a device does
        with self._stepped:
            self.decode_steps += 1
            self.played.append((context.number, "decode"))
            self._stepped.notify_all()
        self._tell(StepDone(None if self.eager else "fake", self.eager, 0.0))

    def _tell(self, event: EngineEvent) -> None:
        self.listener(event)
