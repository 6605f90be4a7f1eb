"""What crosses between the event loop and the engine's thread: commands in, happenings out, and nothing else.

Commands go through a `queue.SimpleQueue`. Happenings go through one `Outbox`, which wakes the loop once for all that
has gathered since the loop last looked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.events import EagerReason
from engine.history import Segment
from engine.outputs import Token
from service.events import StallCause, TurnEnd, TurnRequest
from service.session import SessionKey

# Commands: from the loop to the engine's thread.


@dataclass(frozen=True, slots=True)
class Play:
    """An admitted turn. `key` is its session's, or None."""

    turn_id: int
    request: TurnRequest
    key: SessionKey | None
    admitted_s: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants the rest of this turn."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The reader of this turn took so many of its happenings."""

    turn_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Waiting turns end now; playing ones at `until_s` at the latest."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Everything ends now, and the thread with it."""


Command = Play | Cancel | Taken | Drain | Stop

# Happenings: from the engine's thread to the loop. `at_s` is when, on the worker's clock.


@dataclass(frozen=True, slots=True)
class Began:
    """The turn left the queue; `cached` of its prompt tokens are in the context. See Prefilled for the others."""

    at_s: float
    cached: int
    history: tuple[Segment, ...] = ()
    read: int = 0


@dataclass(frozen=True, slots=True)
class PromptRead:
    """Comes before the first new token: all that was known is in the context since `at_s`.

    `tokens` were prefilled in `busy_s` of the engine's time; `repeated` tokens of a resumed answer were made again, by
    why their step was no replay.
    """

    at_s: float
    tokens: int
    busy_s: float
    repeated: Mapping[EagerReason | None, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Made:
    """One token, in a step of `step_s`; `stalls`: what else the time since the token before went to."""

    at_s: float
    token: Token
    step_s: float
    stalls: tuple[tuple[StallCause, float], ...]


@dataclass(frozen=True, slots=True)
class Over:
    """The turn's one end. `error` says why where it did not end by itself."""

    at_s: float
    end: TurnEnd
    error: Exception | None = None


Happening = Began | PromptRead | Made | Over


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine is open."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The thread ended: as told to (`error` None), or because of this."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ContextsChanged:
    """So many tokens lie on the device and the host now; `evicted_tokens` of idle sessions were given up."""

    kv_tokens: int
    host_tokens: int = 0
    evicted_tokens: int | None = None


Notice = Opened | Gone | ContextsChanged


class Outbox:
    """The way out of the engine's thread. `deliver` runs in the loop: (turn id, happening) or (None, notice)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[int | None, Happening | Notice], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._gathered: deque[tuple[int | None, Happening | Notice]] = deque()
        self._woken = False

    def post(self, turn_id: int | None, what: Happening | Notice) -> None:
        """Called in the engine's thread. Nobody is told once the loop is closed."""
        self._gathered.append((turn_id, what))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: the process is past listening
                self._gathered.clear()

    def _drain(self) -> None:
        # Cleared before the look: what is appended later either is seen by this look or wakes the loop again.
        self._woken = False
        for _ in range(len(self._gathered)):  # not all that keeps coming: the loop has others to serve
            self._deliver(*self._gathered.popleft())


class TurnStream:
    """The loop's end of one turn: its happenings in order, the last one an `Over`. One reader.

    Attributes:
        made: tokens that the engine made. replays, eager_steps: how their steps were run.
        given: tokens that the reader was given, set by the reader.
        prompt_read_s: when its prompt was in the context, or None.
        first_token_s: after its admission, or None.
        cancelled_s: when the wish to break off came, or None.
        over: the turn's end, once it has come.
        stalled: the way to the reader stays full; set by the reader.
    """

    def __init__(
        self, turn_id: int, request: TurnRequest, admitted_s: float, window: int, send: Callable[[Command], None]
    ) -> None:
        self.turn_id = turn_id
        self.request = request
        self.admitted_s = admitted_s
        self.began: Began | None = None
        self.prompt_read_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.made = 0
        self.replays = 0
        self.eager_steps: dict[str, int] = {}
        self.given = 0
        self.cancelled_s: float | None = None
        self.over: Over | None = None
        self.end: TurnEnd | None = None
        self.stalled = False
        self._send = send
        self._acknowledge_every = max(1, window // 2)
        self._untold = 0
        self._waiting: deque[Happening] = deque()
        self._arrived = asyncio.Event()

    def put(self, happening: Happening) -> None:
        """The worker's side, in the loop."""
        if isinstance(happening, Made):
            self.made += 1
            self.last_token_s = happening.at_s
            if happening.token.eager is None:
                self.replays += 1
            else:
                reason = happening.token.eager.value
                self.eager_steps[reason] = self.eager_steps.get(reason, 0) + 1
        elif isinstance(happening, Began):
            self.began = happening
        elif isinstance(happening, Over):
            self.over = happening
        self._waiting.append(happening)
        self._arrived.set()

    async def take(self) -> list[Happening]:
        """Everything that has come since the last call, at least one. Ends with `Over`; do not call it after that."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        self._untold += len(taken)
        if self._untold >= self._acknowledge_every and self.over is None:
            self._send(Taken(self.turn_id, self._untold))
            self._untold = 0
        return taken
