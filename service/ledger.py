"""Keeps the account of turns: learns from what happened, tells the observers, and closes each turn's account once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from service.admission import Admission
from service.errors import (
    DeadlineExceededError,
    DeadlineUnmeetableError,
    DrainingError,
    EngineLostError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    SessionBusyError,
)
from service.events import (
    FirstToken,
    Refusal,
    ServiceEvent,
    TokenMade,
    TurnAdmitted,
    TurnEnd,
    TurnEnded,
    TurnRefused,
    TurnRequest,
    TurnStarted,
)
from service.mailbox import Began, Happening, Made, PromptRead, TurnStream

log = logging.getLogger(__name__)

ServiceListener = Callable[[ServiceEvent], None]

REFUSALS: Final[Mapping[type[ServiceError], Refusal]] = {
    QueueFullError: Refusal.QUEUE_FULL,
    DeadlineUnmeetableError: Refusal.DEADLINE_UNMEETABLE,
    DeadlineExceededError: Refusal.DEADLINE_UNMEETABLE,
    SessionBusyError: Refusal.SESSION_BUSY,
    NotReadyError: Refusal.NOT_READY,
    EngineLostError: Refusal.NOT_READY,
    DrainingError: Refusal.DRAINING,
}


def ignore(_: ServiceEvent) -> None:
    """The listener of a service nobody watches."""


class Ledger:
    """Everything here runs in the event loop."""

    def __init__(self, admission: Admission, listener: ServiceListener) -> None:
        self._admission = admission
        self._listener = listener

    def tell(self, event: ServiceEvent) -> None:
        """An observer's fault is no turn's."""
        try:
            self._listener(event)
        except Exception:
            log.exception("an observer failed at %s", type(event).__name__)

    def refused(self, request: TurnRequest, error: ServiceError) -> None:
        """A turn was not let in."""
        self.tell(TurnRefused(request.request_id, REFUSALS[type(error)], request.caller))

    def admitted(self, request: TurnRequest) -> None:
        """A turn was let in."""
        self.tell(TurnAdmitted(request.request_id, len(request.prompt_ids), request.trace))

    def note(self, stream: TurnStream, what: Happening) -> None:
        """Something happened to a turn; called before its reader can know."""
        request_id = stream.request.request_id
        if isinstance(what, Began):
            self._admission.started(stream.turn_id, what.at_s)
            queue_s = what.at_s - stream.admitted_s
            prompt_tokens, resumed = len(stream.request.prompt_ids), stream.request.resumed
            self.tell(TurnStarted(request_id, queue_s, prompt_tokens, what.cached, resumed))
        elif isinstance(what, PromptRead):
            self._admission.learn_prefill(what.tokens, what.busy_s)
            stream.prompt_read_s = what.at_s
        elif isinstance(what, Made):
            self._admission.learn_token(what.step_s)
            if stream.last_token_s is None:
                stream.first_token_s = what.at_s - stream.admitted_s
                began, read_s = stream.began, stream.prompt_read_s
                prefill_s = 0.0 if began is None or read_s is None else read_s - began.at_s
                self.tell(FirstToken(request_id, stream.first_token_s, prefill_s))
            else:
                self.tell(TokenMade(request_id, what.at_s - stream.last_token_s, what.stalls))
        elif what.end in (TurnEnd.STOP, TurnEnd.LENGTH):
            self._admission.learn_turn(stream.made)

    def settle(self, stream: TurnStream) -> None:
        """Closes the account once the engine has stopped work on the turn and its reader has left, not before both."""
        if stream.over is None or stream.end is None:
            return
        over_s, cancelled_s = stream.over.at_s, stream.cancelled_s
        # One that waited was no work of the engine's: it had nothing to come to rest from.
        broken_off = stream.end is TurnEnd.CANCELLED and cancelled_s is not None and stream.began is not None
        self.tell(
            TurnEnded(
                request_id=stream.request.request_id,
                end=stream.end,
                duration_s=over_s - stream.admitted_s,
                prompt_tokens=len(stream.request.prompt_ids) if stream.began else 0,
                cached_tokens=stream.began.cached if stream.began else 0,
                completion_tokens=stream.given,
                discarded_tokens=stream.made - stream.given,
                replays=stream.replays,
                eager_steps=stream.eager_steps,
                cancel_to_idle_s=max(over_s - (cancelled_s or over_s), 0.0) if broken_off else None,
                queue_s=stream.began.at_s - stream.admitted_s if stream.began else None,
                first_token_s=stream.first_token_s,
                caller=stream.request.caller,
                session_id=stream.request.session_id,
            )
        )
