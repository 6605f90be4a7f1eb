"""The turns that play in the engine's thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, closing

from engine.events import EagerReason
from engine.outputs import Replayed, Token, TurnStep
from service.contexts import Contexts
from service.events import StallCause
from service.mailbox import Play, PromptRead
from service.port import EnginePort

# Steps as they should be: replays, or eager ones where no graphs were to be had.
_PLAIN = frozenset({None, EagerReason.NO_CUDA, EagerReason.DISABLED})


class Clockwork:
    """How long the engine has been busy with what, all turns together, seconds."""

    def __init__(self) -> None:
        self.decode_s = 0.0
        self.prefill_s = 0.0


class Performance:
    """A turn from its command to its end. Opening, stepping and closing happen in the engine's thread."""

    def __init__(self, command: Play) -> None:
        self.turn_id = command.turn_id
        self.request = command.request
        self.key = command.key
        self.behind = 0  # happenings that its reader has not taken
        self.sound = True  # whether its context may serve again
        self.began = False  # whether its reader knows that it left the queue
        self.prefill_s = 0.0
        self.prefilled = 0  # prompt tokens, those from the cache not counted
        self.prefilled_s = 0.0
        self.repeated: Counter[EagerReason | None] = Counter()  # steps that made known tokens again
        self.made = 0
        self.ended_by_token = False
        self._steps: Generator[TurnStep, None, None] | None = None
        self._exit = ExitStack()
        self._last_s: float | None = None
        self._paused_s: float | None = None
        self._stalled_by_client_s = 0.0
        self._decode_before_s = self._prefill_before_s = 0.0

    @property
    def opened(self) -> bool:
        """Whether it has left the queue."""
        return self._steps is not None

    def open(self, engine: EnginePort, contexts: Contexts) -> None:
        """Takes a context and sets the generator up; no work is done yet."""
        context = contexts.borrow(self.key)
        self._exit.callback(lambda: contexts.give_back(self.key, context, self.sound))
        self._exit.push(self._distrust)
        self._steps = self._exit.enter_context(
            closing(engine.generate(context, self.request.prompt_ids, self.request.sampling, self.request.resumption))
        )

    def step(self) -> TurnStep | None:
        """One step; None when the turn has ended by itself. Raises what the engine raises."""
        assert self._steps is not None
        step = next(self._steps, None)
        if isinstance(step, Token):
            self.made += 1
            self.ended_by_token = step.end
        elif isinstance(step, Replayed):
            self.repeated[step.eager] += 1
        return step

    def prompt_read(self) -> PromptRead:
        """What was done before its first new token."""
        return PromptRead(self.prefilled_s, self.prefilled, self.prefill_s, dict(self.repeated))

    @property
    def complete(self) -> bool:
        """Whether its last token is made, so that the next step only ends it."""
        return self.ended_by_token or len(self.request.emitted) + self.made == self.request.sampling.max_tokens

    def close(self) -> None:
        """Closes the generator, then gives the context back: the engine has stopped work on this turn."""
        self._exit.close()

    def _distrust(self, kind: type[BaseException] | None, _error: object, _traceback: object) -> bool:
        """A generator that cannot even be closed leaves nothing that may serve again."""
        self.sound = self.sound and kind is None
        return False

    def pause(self, now_s: float) -> None:
        """Its reader is behind."""
        self._paused_s = now_s

    def resume(self, now_s: float) -> None:
        """Its reader has caught up."""
        if self._paused_s is not None:
            self._stalled_by_client_s += now_s - self._paused_s
            self._paused_s = None

    def stalls(
        self, token: Token, now_s: float, step_s: float, busy: Clockwork
    ) -> tuple[tuple[StallCause, float], ...]:
        """What the time since its last token went to, beside its own step; empty for the first token."""
        last_s, self._last_s = self._last_s, now_s
        decode_s, prefill_s = busy.decode_s - self._decode_before_s, busy.prefill_s - self._prefill_before_s
        client_s, self._stalled_by_client_s = self._stalled_by_client_s, 0.0
        self._decode_before_s, self._prefill_before_s = busy.decode_s, busy.prefill_s
        if last_s is None:
            return ()
        found: tuple[tuple[StallCause, float], ...] = (
            (StallCause.EAGER, step_s if token.eager not in _PLAIN else 0.0),
            (StallCause.OTHER_SESSION, decode_s - step_s),
            (StallCause.PREFILL, prefill_s),
            (StallCause.HOST, now_s - last_s - decode_s - prefill_s),
        )
        if client_s:  # what others did meanwhile cost nobody anything
            found = (found[0], (StallCause.CLIENT, client_s))
        return tuple((cause, seconds) for cause, seconds in found if seconds > 1e-9)
