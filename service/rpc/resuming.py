"""The part of a request that resumes an answer: proto to domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.errors import InvalidRequestError
from engine.history import Resumption
from service.events import ResumeMode, TurnRequest
from service.resume import ResumeToken, check_same_turn, open_token
from service.rpc.limits import MAX_RESUMED_IDS
from soloist.v1 import chat_pb2

_MODES: Final = {
    chat_pb2.RESUME_MODE_UNSPECIFIED: ResumeMode.EXACT,
    chat_pb2.RESUME_MODE_EXACT: ResumeMode.EXACT,
    chat_pb2.RESUME_MODE_FAST: ResumeMode.FAST,
}
MODES_TOLD: Final[Mapping[ResumeMode | None, chat_pb2.ResumeMode.ValueType]] = {
    None: chat_pb2.RESUME_MODE_UNSPECIFIED,
    ResumeMode.EXACT: chat_pb2.RESUME_MODE_EXACT,
    ResumeMode.FAST: chat_pb2.RESUME_MODE_FAST,
}


@dataclass(frozen=True, slots=True)
class AskedResume:
    """The answer so far, as its reader tells it."""

    token: ResumeToken
    emitted: tuple[int, ...]
    mode: ResumeMode

    def check_same(self, name: str, value: object) -> None:
        """A resumed answer keeps the parameters that it began with; what the request says too must be the same."""
        if value != self.token.scalars.get(name):
            raise InvalidRequestError(name, "differs from the answer that is resumed; leave it out or send the same")

    def of_turn(self, turn: TurnRequest, fingerprint: str, context: int) -> TurnRequest:
        """`turn` as the rest of that answer, on a model with such a context. Raises what `check_same_turn` does."""
        longest = context - len(turn.prompt_ids) + 1
        if len(self.emitted) > longest:
            raise InvalidRequestError(
                "resume.token_ids", f"are {len(self.emitted)}, and an answer to this has at most {longest} tokens"
            )
        exact = self.mode is ResumeMode.EXACT
        resumed = replace(turn, resumption=Resumption(self.emitted, exact, self.token.history, self.token.read))
        check_same_turn(self.token, resumed, fingerprint)
        return resumed


def asked_resume(resume: chat_pb2.Resume, vocabulary: int) -> AskedResume:
    """Check and convert. InvalidRequestError names the field."""
    if resume.mode not in _MODES:
        raise InvalidRequestError("resume.mode", f"must be RESUME_MODE_EXACT or RESUME_MODE_FAST; got {resume.mode}")
    if len(resume.token_ids) > MAX_RESUMED_IDS:
        raise InvalidRequestError(
            "resume.token_ids", f"holds at most {MAX_RESUMED_IDS} ids; got {len(resume.token_ids)}"
        )
    for index, token_id in enumerate(resume.token_ids):
        if token_id >= vocabulary:
            raise InvalidRequestError(
                f"resume.token_ids[{index}]", f"must be below the vocabulary's {vocabulary} ids; got {token_id}"
            )
    return AskedResume(open_token(resume.resume_token), tuple(resume.token_ids), _MODES[resume.mode])
