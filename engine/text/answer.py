"""The words of one answer as they come: whole characters, and nothing that may still turn out to be a stop text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.errors import InvalidRequestError
from engine.params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from engine.text.tokenizer import Tokenizer, check_text


class AnswerText:
    """Turns the ids of one answer into text, one at a time, at a cost that does not grow with the answer.

    The deltas, joined, are exactly `Tokenizer.decode` of the ids, cut before the first stop text. Where several stop
    texts end at the same character the longest counts; of others, the one that ends first.

    Attributes:
        stopped: the stop text that ended the answer, None while there is none. The text ends right before it, and
            further ids add nothing.

    Raises InvalidRequestError for stop texts that are empty, too long, too many, or no Unicode.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError("stop", f"holds at most {MAX_STOP_STRINGS} texts; got {len(stop)}")
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_first_space
        # Longest first: the first watch that matches at a character is then the longest that does.
        self._watches = [_Watch(text) for text in sorted(dict.fromkeys(stop), key=len, reverse=True)]
        self._held = ""
        self._finished = False

    def push(self, token_id: int) -> str:
        """The text that can be shown once this id is known; often empty."""
        if self._finished:
            raise ValueError("push after finish: an answer ends once")
        if self.stopped is not None:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """What was held back, once: a later call gives nothing. A broken last character is one U+FFFD."""
        if self._finished:
            return ""
        self._finished = True
        if self.stopped is not None:
            return ""
        shown = self._release(self._decoder.decode(b"", final=True))
        if self.stopped is None:
            shown, self._held = shown + self._held, ""
        return shown

    def _release(self, text: str) -> str:
        """Take new text in; give back what can no longer become part of a stop text."""
        if not self._watches:
            return text
        pending = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            for watch in self._watches:
                if watch.step(character):
                    self.stopped, self._held = watch.text, ""
                    return pending[: place - len(watch.text)]
        held = max(watch.matched for watch in self._watches)
        cut = len(pending) - held
        self._held = pending[cut:]
        return pending[:cut]


class _Watch:
    """Looks for one stop text, a character at a time (Knuth, Morris, Pratt): `matched` characters stand at the end."""

    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidRequestError("stop", "holds an empty text, which would end every answer at once; leave it out")
        if len(text) > MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                "stop", f"holds a text of {len(text)} characters; at most {MAX_STOP_STRING_CHARS} are allowed"
            )
        check_text(text, "stop")
        self.text = text
        self.matched = 0
        self._borders = [0] * len(text)
        border = 0
        for place in range(1, len(text)):
            while border and text[place] != text[border]:
                border = self._borders[border - 1]
            border += text[place] == text[border]
            self._borders[place] = border

    def step(self, character: str) -> bool:
        """Take one character; whether the whole text now stands at the end."""
        matched = self.matched
        while matched and self.text[matched] != character:
            matched = self._borders[matched - 1]
        if self.text[matched] == character:
            matched += 1
        self.matched = matched
        return matched == len(self.text)
