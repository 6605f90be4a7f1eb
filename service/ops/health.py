"""Whether this server should get work, as a state with its reasons. Health, balancers and GetLoad all read it.

Pure: the caller brings the clock and the facts. service.rpc.health tells it to gRPC clients.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Readiness(StrEnum):
    """The process's life, in order. A later state never goes back to an earlier one.

    UNSOUND: a self-check failed. Who comes is still answered, in the slower way, and balancers should send nobody.
    """

    LOADING = "loading"
    SERVING = "serving"
    UNSOUND = "unsound"
    DRAINING = "draining"
    ENGINE_LOST = "engine_lost"


class Question(StrEnum):
    """What a kubelet asks, each with another remedy in mind. The values are service names of grpc.health.v1.

    READINESS: may new turns come? LIVENESS: would anything but a restart help? STARTUP: is the model loaded, are its
    graphs captured?
    """

    READINESS = "readiness"
    LIVENESS = "liveness"
    STARTUP = "startup"


_NEXT: dict[Readiness, frozenset[Readiness]] = {
    Readiness.LOADING: frozenset({Readiness.SERVING, Readiness.UNSOUND, Readiness.DRAINING, Readiness.ENGINE_LOST}),
    Readiness.SERVING: frozenset({Readiness.UNSOUND, Readiness.DRAINING, Readiness.ENGINE_LOST}),
    Readiness.UNSOUND: frozenset({Readiness.DRAINING, Readiness.ENGINE_LOST}),
    Readiness.DRAINING: frozenset({Readiness.ENGINE_LOST}),
    Readiness.ENGINE_LOST: frozenset(),
}


class Health:
    """Readiness, and who wants to know when it changes. All calls from the event loop's thread."""

    def __init__(self) -> None:
        self._state = Readiness.LOADING
        self._loaded = False
        self._listeners: list[Callable[[Readiness], None]] = []

    @property
    def state(self) -> Readiness:
        return self._state

    @property
    def serving(self) -> bool:
        """Whether new work should be sent here."""
        return self._state is Readiness.SERVING

    def says_yes_to(self, question: Question) -> bool:
        """The answer to a probe. A server that leaves stays alive and started, so that it is left to end in order."""
        match question:
            case Question.READINESS:
                return self.serving
            case Question.LIVENESS:
                return self._state is not Readiness.ENGINE_LOST
            case Question.STARTUP:
                return self._loaded and self._state is not Readiness.ENGINE_LOST

    def subscribe(self, listener: Callable[[Readiness], None]) -> Callable[[], None]:
        """Call `listener` after each change of an answer; returns the call that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def loaded(self) -> None:
        """The engine is open. Said beside the state: a server can be unsound, or leave, before it has loaded."""
        self._loaded = True
        self._tell()

    def move(self, to: Readiness) -> None:
        """Go to another state. Staying is fine; going where the table does not lead raises ValueError."""
        if to is self._state:
            return
        if to not in _NEXT[self._state]:
            raise ValueError(f"readiness cannot go from {self._state} to {to}")
        self._state = to
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self._state)
