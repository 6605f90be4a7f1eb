"""How an answer looks in JSON: as chat completions, or as completions. Whole, or in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from service.client import Finished, Logprob, TokenLogprobs

Json = dict[str, Any]

# Whatever cut an answer short, OpenAI's clients know as `length`; `soloist.finish_reason` says what it was.
_REASONS: Final = {"stop": "stop", "length": "length", "deadline": "length"}


def finish_reason(finished: Finished) -> str | None:
    """OpenAI's word for the answer's end; None for an end that is an error to them."""
    return _REASONS.get(finished.reason)


def usage(finished: Finished) -> Json:
    """The usage, with what was found in the session's cache."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def figures(finished: Finished, request_id: str, resumed: int) -> Json:
    """The extension `soloist`: what the server measured of this answer. Times are seconds."""
    return {
        "request_id": request_id,
        "finish_reason": finished.reason,
        "stop_text": finished.stop_text,
        "prompt_tokens": finished.prompt_tokens,
        "cached_tokens": finished.cached_tokens,
        "completion_tokens": finished.completion_tokens,
        "replays": finished.replays,
        "eager_steps": dict(finished.eager_steps),
        "queue_s": round(finished.queue_s, 6),
        "prefill_s": round(finished.prefill_s, 6),
        "first_token_s": round(finished.first_token_s, 6),
        "decode_s": round(finished.decode_s, 6),
        "resumed": resumed,
    }


@dataclass(frozen=True, slots=True)
class Answering:
    """What every object of one answer says. `created` is Unix time, seconds."""

    request_id: str
    model: str
    fingerprint: str | None
    created: int

    @classmethod
    def now(cls, request_id: str, model: str, fingerprint: str | None) -> Answering:
        return cls(request_id, model, fingerprint, int(time.time()))


class Voice(Protocol):
    """One endpoint's way to say an answer."""

    def opening(self, of: Answering) -> Json | None:
        """The first chunk, before any text."""

    def chunk(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        """More of the answer."""

    def ending(self, of: Answering, reason: str) -> Json:
        """The chunk that says why it ended."""

    def accounts(self, of: Answering) -> Json:
        """The chunk without choices, for the usage."""

    def whole(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str) -> Json:
        """The answer in one object."""


class ChatVoice:
    """/v1/chat/completions."""

    def opening(self, of: Answering) -> Json | None:
        return self._chunk(of, {"role": "assistant", "content": ""}, None)

    def chunk(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        return self._chunk(of, {"content": text}, self._logprobs(logprobs) if logprobs else None)

    def ending(self, of: Answering, reason: str) -> Json:
        return self._chunk(of, {}, None, reason)

    def accounts(self, of: Answering) -> Json:
        return {**self._head(of, "chat.completion.chunk"), "choices": []}

    def whole(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str) -> Json:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if logprobs is None else self._logprobs(logprobs),
            "finish_reason": reason,
        }
        return {**self._head(of, "chat.completion"), "choices": [choice]}

    def _chunk(self, of: Answering, delta: Json, logprobs: Json | None, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head(of, "chat.completion.chunk"), "choices": [choice]}

    def _head(self, of: Answering, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{of.request_id}",
            "object": kind,
            "created": of.created,
            "model": of.model,
            "system_fingerprint": of.fingerprint,
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json:
        content = [
            {**self._logprob(entry.chosen), "top_logprobs": [self._logprob(other) for other in entry.top]}
            for entry in logprobs
        ]
        return {"content": content, "refusal": None}

    def _logprob(self, entry: Logprob) -> Json:
        return {"token": _shown(entry), "logprob": entry.logprob, "bytes": list(entry.token_bytes)}


class CompletionVoice:
    """/v1/completions."""

    def opening(self, of: Answering) -> Json | None:
        return None

    def chunk(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        return self._object(of, text, self._logprobs(logprobs) if logprobs else None, None)

    def ending(self, of: Answering, reason: str) -> Json:
        return self._object(of, "", None, reason)

    def accounts(self, of: Answering) -> Json:
        return {**self._object(of, "", None, None), "choices": []}

    def whole(self, of: Answering, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str) -> Json:
        return self._object(of, text, None if logprobs is None else self._logprobs(logprobs), reason)

    def _object(self, of: Answering, text: str, logprobs: Json | None, reason: str | None) -> Json:
        return {
            "id": f"cmpl-{of.request_id}",
            "object": "text_completion",
            "created": of.created,
            "model": of.model,
            "system_fingerprint": of.fingerprint,
            "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}],
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json:
        return {
            "tokens": [_shown(entry.chosen) for entry in logprobs],
            "token_logprobs": [entry.chosen.logprob for entry in logprobs],
            "top_logprobs": [{_shown(other): other.logprob for other in entry.top} for entry in logprobs],
        }


def _shown(entry: Logprob) -> str:
    """A token as text. One that is no whole character has its bytes beside it."""
    return entry.token_bytes.decode(errors="replace")
