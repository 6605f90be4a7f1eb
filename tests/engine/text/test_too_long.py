"""A prompt that cannot fit is refused for little work, and one that fits never is, as the embedded model has it."""

from __future__ import annotations

import random
import time

import pytest

from engine.errors import ContextLengthError
from engine.text import ChatText, Tokenizer
from service.events import ChatMessage

CONTEXT = 8192
MIB = 1 << 20
DRAW = random.Random(11)
TEXTS = {
    "prose": "The quick brown fox jumps over the lazy dog, and then it sleeps. " * (MIB // 65),
    "one word": "a" * MIB,
    "letters": "".join(DRAW.choices("abcdefghijklmnopqrstuvwxyz", k=MIB)),
    "digits": "7" * MIB,
    "spaces": " " * MIB,
    "lines": "\n" * MIB,
    "signs": "".join(DRAW.choices("!@#$%^&*()<>|", k=MIB)),
    "han": "".join(map(chr, DRAW.choices(range(0x4E00, 0x9FA5), k=MIB // 3))),
    "emoji": "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467" * (MIB // 22),
    "controls": "<|im_start|>" * (MIB // 12),
}


@pytest.mark.parametrize("name", TEXTS)
def test_promise_16_four_megabytes_are_refused_with_both_counts_for_little_work(embedded: ChatText, name: str) -> None:
    messages = [ChatMessage("user", TEXTS[name])] * 4
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        with pytest.raises(ContextLengthError, match=r"at least \d+ tokens; the context holds 8192"):
            embedded.prompt_ids(messages, room=CONTEXT)
        took_s.append(time.process_time() - began_s)

    assert min(took_s) < 0.2


@pytest.mark.parametrize("name", TEXTS)
def test_texts_below_what_the_longest_tokens_hold_are_refused_by_their_pieces(tokenizer: Tokenizer, name: str) -> None:
    text = TEXTS[name][:200_000]
    room = len(tokenizer.encode(text)) // 2
    least = tokenizer.tokens_beyond(text, room)

    assert least is None or room < least <= 2 * room + 1
    assert tokenizer.tokens_beyond(text, room // 50) is not None


def long_worded(tokenizer: Tokenizer, tokens: int) -> str:
    """A text of about so many long tokens: the most characters that may fit."""
    long = [data for data in map(tokenizer.token_bytes, range(tokenizer.vocabulary)) if len(data) > 12]
    return b"".join(random.Random(tokens).choices(long, k=tokens)).decode("utf-8", "replace")


@pytest.mark.parametrize("tokens", [1000, 5000, 20_000])
def test_what_fits_is_not_refused_however_long_its_tokens_are(tokenizer: Tokenizer, tokens: int) -> None:
    for text in (long_worded(tokenizer, tokens), "a" * 4 * tokens, " " * 60 * tokens, "x = 1\n        " * tokens):
        ids = tokenizer.encode(text)
        assert tokenizer.tokens_beyond(text, len(ids)) is None


def test_ids_are_the_same_with_and_without_a_room(embedded: ChatText) -> None:
    messages = [ChatMessage("user", long_worded(embedded.tokenizer, 3000))]
    ids = embedded.prompt_ids(messages)

    assert embedded.prompt_ids(messages, room=len(ids)) == ids


def test_bytes_that_the_vocabulary_has_no_token_for_count_for_nothing(tokenizer: Tokenizer) -> None:
    text = "\x04" * MIB  # as in the reference they vanish
    assert tokenizer.encode(text) == []
    assert tokenizer.tokens_beyond(text, 10) is None
