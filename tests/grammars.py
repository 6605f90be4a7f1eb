"""Answers of no model at all: allowed ids drawn at random, as a random model would, with a liking for endings."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from engine.text import ChatText
from engine.text.grammar import Grammar, GrammarState


def allowed_ids(state: GrammarState) -> list[int]:
    """Ids that may come next, smallest first."""
    words = np.zeros(state.words, dtype="<u4")
    state.write_mask(words.ctypes.data)
    found: list[int] = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
    return found


def answer_at_random(text: ChatText, grammar: Grammar, seed: int, most: int = 1000) -> str:
    """One answer of at most `most` tokens. Where it may end it does half the time, and it likes what closes things."""
    draw = random.Random(seed)
    state, answer = grammar.begin(), text.answer(())
    said = ""
    for _ in range(most):
        allowed = allowed_ids(state)
        ends = text.end_ids.intersection(allowed)
        if ends and (len(ends) == len(allowed) or draw.random() < 0.5):
            return said + answer.finish()
        candidates = set(allowed) - ends
        if draw.random() < 0.3:
            candidates = candidates & _closers(text) or candidates
        chosen = draw.choice(sorted(candidates))
        said += answer.push(chosen)
        state.accept(chosen)
    raise AssertionError(f"no end after {most} tokens: {said[:200]!r}")


@cache
def _closers(text: ChatText) -> set[int]:
    """Tokens that end strings, arrays and objects."""
    pieces = map(text.tokenizer.token_bytes, range(text.tokenizer.vocabulary))
    return {token_id for token_id, piece in enumerate(pieces) if piece in (b'"', b"}", b"]", b"@")}
