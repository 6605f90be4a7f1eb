"""One tree of errors for what becomes of a turn. The edge (service.rpc.status) has the one table that maps it to gRPC.

Errors of the engine that are the caller's own (`engine.errors.InvalidRequestError` and below) pass through unchanged.
"""

from __future__ import annotations

from engine.errors import EngineError, InvalidRequestError


class ServiceError(Exception):
    """Root of everything the service raises on purpose."""


class RefusedError(ServiceError):
    """The turn was never admitted: nothing of it was done, so it is safe to ask again."""


class RetryLaterError(RefusedError):
    """Refused for want of room. `retry_after_s` is when asking again is likely to do better, in seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(f"{message}; ask again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class QueueFullError(RetryLaterError):
    """As many turns wait as the queue holds."""

    def __init__(self, queue_limit: int, retry_after_s: float) -> None:
        super().__init__(f"{queue_limit} turns wait already, which is all that the queue holds", retry_after_s)
        self.queue_limit = queue_limit


class PromptsFullError(QueueFullError):
    """As many prompts are being read, or wait for that, as there is room for. None of them is a turn yet."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        RetryLaterError.__init__(
            self,
            f"{limit} prompts are being tokenised or wait for it, which is all that there is room for",
            retry_after_s,
        )
        self.queue_limit = limit


class DeadlineUnmeetableError(RetryLaterError):
    """The turn would still wait, or lack the time that it waited, when its deadline comes."""

    def __init__(self, left_s: float, predicted_s: float, retry_after_s: float) -> None:
        super().__init__(
            f"the deadline is in {left_s:.1f} s, and with its wait the turn needs about {predicted_s:.1f} s",
            retry_after_s,
        )
        self.left_s = left_s
        self.predicted_s = predicted_s


class CallerLimitError(RetryLaterError):
    """This caller has as many turns as it may have, whatever room there is."""

    def __init__(self, max_turns: int, retry_after_s: float = 1.0) -> None:
        super().__init__(f"you have {max_turns} turns waiting or playing, which is all that you may", retry_after_s)
        self.max_turns = max_turns


class UnauthenticatedError(RefusedError):
    """Nobody whom the operator knows. It says the same whatever was wrong: anything more would help a guess."""

    def __init__(self) -> None:
        super().__init__("this server answers to those it knows: send `authorization: Bearer KEY` with a valid key")


class SessionBusyError(RefusedError):
    """The session has one turn playing and one waiting; a third would not know which history it continues."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} has a turn playing and another waiting; wait for one of them to end")
        self.session_id = session_id


class OtherNumericsError(RefusedError):
    """An answer cannot go on exactly here: other numerics made it."""

    def __init__(self, made_by: str, here: str) -> None:
        super().__init__(
            f"the answer was made with numerics {made_by}, and this server has {here}; resume it on a server with the "
            "same, or in FAST mode"
        )


class NotReadyError(RefusedError):
    """The engine is still loading, or is gone."""

    def __init__(self, message: str = "the model is not loaded yet; wait for health to say SERVING") -> None:
        super().__init__(message)


class DrainingError(RefusedError):
    """The server is going away. Also how a turn ends that was admitted and still waits when draining begins."""

    def __init__(self, message: str = "this server is shutting down; ask another one") -> None:
        super().__init__(message)


class DeadlineExceededError(ServiceError):
    """The deadline came before the turn left the queue. A turn that had started ends in `Finished` instead."""

    def __init__(self, message: str = "the deadline came while the turn was waiting in the queue") -> None:
        super().__init__(message)


class TurnFailedError(ServiceError):
    """The engine failed this turn and serves others. The cause is in `__cause__` and in the log, not in the text."""

    def __init__(self, message: str = "the model failed while answering; other turns are not concerned") -> None:
        super().__init__(message)


class SlowReaderError(ServiceError):
    """The reader fell so far behind, for so long, that its turn was ended to free the place."""

    def __init__(self, behind: int, waited_s: float) -> None:
        super().__init__(f"the reader was {behind} events behind for {waited_s:.0f} s; read the stream as it comes")
        self.behind = behind
        self.waited_s = waited_s


class EngineLostError(ServiceError):
    """The engine's thread or device is gone for good: the process ends, and another server may answer."""

    def __init__(self, message: str = "this server lost its engine and is going away; ask another one") -> None:
        super().__init__(message)


def loggable(error: BaseException) -> str:
    """What a log may say of an error: the text of those that are ours and quote no message, of others the type alone.

    A library's error may quote whatever it was given, and that may be what somebody said.
    """
    ours = isinstance(error, EngineError | EngineLostError | OSError) and not isinstance(error, InvalidRequestError)
    text = " ".join(str(error).split()) if ours else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
