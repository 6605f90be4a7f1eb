"""Answers as they come: whole characters, stop texts over token borders, one flush."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.text import AnswerText, Tokenizer
from engine.text.build import build_tokenizer
from tests.engine.text.test_build import sentencepiece

KOREAN = "안녕하세요, 저는 한국어로 대답하는 모델입니다. 값을 읽고 앉았다. 뷁!"
CHINESE = "你好，我是一个语言模型。𠮷野家在東京都。繁體字與简体字。"
# A family and a flag joined by U+200D, a skin tone, a keycap, and a letter apart from its accent.
EMOJI = (
    "🙂 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f3f3\ufe0f\u200d\U0001f308 "
    "1\ufe0f\u20e3 e\u0301"
)
_IDS = st.lists(st.integers(0, 49151), max_size=40)


def deltas(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], AnswerText]:
    """What each id shows, and at the end what was held back."""
    answer = AnswerText(tokenizer, stop)
    return [*(answer.push(token_id) for token_id in ids), answer.finish()], answer


def cut_before_first_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """The slow twin: look at every prefix of the text."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize("text", [KOREAN, CHINESE, EMOJI, "caf\u00e9 naïve"])
def test_txt_03_joined_deltas_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    shown, _ = deltas(tokenizer, tokenizer.encode(text))
    assert "".join(shown) == text
    assert not any("\ufffd" in delta for delta in shown)


@pytest.mark.parametrize("text", ["안녕 hello 🙂", "한"])
def test_txt_03_byte_fallback_shows_whole_characters(text: str) -> None:
    tokenizer = build_tokenizer(sentencepiece())
    shown, _ = deltas(tokenizer, tokenizer.encode(text))
    assert "".join(shown) == text
    assert not any("\ufffd" in delta for delta in shown)


@settings(max_examples=300, deadline=None)
@given(ids=_IDS)
def test_txt_03_joined_deltas_are_the_full_decode_of_any_ids(tokenizer: Tokenizer, ids: list[int]) -> None:
    shown, _ = deltas(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=30))
def test_txt_03_joined_deltas_are_the_full_decode_for_sentencepiece(ids: list[int]) -> None:
    tokenizer = build_tokenizer(sentencepiece())
    shown, _ = deltas(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)


def test_txt_04_a_stop_text_over_three_tokens_is_never_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The answer is forty-two. END OF ANSWER and more")
    stop = ". END OF"
    assert len(tokenizer.encode(stop)) >= 3
    shown, answer = deltas(tokenizer, ids, (stop,))
    assert "".join(shown) == "The answer is forty-two"
    assert answer.stopped == stop


def test_txt_04_nothing_that_may_become_a_stop_text_is_shown(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ("abcabd",))
    shown = [answer.push(token_id) for letter in "abcabcabd" for token_id in tokenizer.encode(letter)]
    assert shown == ["", "", "", "", "", "abc", "", "", ""]
    assert answer.stopped == "abcabd"
    assert answer.finish() == ""


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="ab ü", max_size=30),
    stop=st.lists(st.text(alphabet="ab ü", min_size=1, max_size=5), max_size=4).map(tuple),
)
def test_txt_04_text_ends_exactly_before_the_first_stop_text(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...]
) -> None:
    by_byte = {tokenizer.token_bytes(token_id): token_id for token_id in range(300)}
    ways = [tokenizer.encode(text), [by_byte[bytes((byte,))] for byte in text.encode()]]
    expected, matched = cut_before_first_stop(text, stop)
    for ids in ways:
        shown, answer = deltas(tokenizer, ids, stop)
        assert ("".join(shown), answer.stopped) == (expected, matched)


@settings(max_examples=200, deadline=None)
@given(ids=_IDS, data=st.data())
def test_txt_04_any_ids_and_any_stop_texts(tokenizer: Tokenizer, ids: list[int], data: st.DataObject) -> None:
    text = tokenizer.decode(ids)
    places = st.integers(0, len(text)) if text else st.just(0)
    cuts = data.draw(st.lists(st.tuples(places, places), max_size=3))
    stop = tuple({text[min(cut) : max(cut)][:256] for cut in cuts} - {""})
    shown, answer = deltas(tokenizer, ids, stop)
    assert ("".join(shown), answer.stopped) == cut_before_first_stop(text, stop)


def test_txt_05_a_tail_that_began_like_a_stop_text_is_shown_once(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ("done.\n\nUser:",))
    shown = "".join(answer.push(token_id) for token_id in tokenizer.encode("It is done.\n\nUse"))
    assert shown == "It is "
    assert answer.finish() == "done.\n\nUse"
    assert answer.finish() == ""
    assert answer.stopped is None


def test_txt_05_the_tail_goes_through_the_stop_texts_too(tokenizer: Tokenizer) -> None:
    broken = tokenizer.encode("🙂")[0]
    shown, answer = deltas(tokenizer, [*tokenizer.encode("ok"), broken], ("k\ufffd",))
    assert "".join(shown) == "o"
    assert answer.stopped == "k\ufffd"


def test_an_answer_ends_once(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer)
    answer.finish()
    with pytest.raises(ValueError, match="after finish"):
        answer.push(20)


def test_ids_after_a_stop_text_add_nothing(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ("x",))
    assert answer.push(tokenizer.encode("x")[0]) == ""
    assert answer.push(tokenizer.encode("y")[0]) == ""
    assert answer.finish() == ""


def test_txt_10_control_tokens_show_nothing(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("hi"), *sorted(tokenizer.control_ids), *tokenizer.encode(" there"), 2, 0]
    shown, _ = deltas(tokenizer, ids)
    assert "".join(shown) == "hi there"


def test_txt_11_a_character_cut_off_is_one_replacement(tokenizer: Tokenizer) -> None:
    smile = tokenizer.encode("🙂")
    assert len(smile) > 1
    for kept in range(1, len(smile)):
        shown, _ = deltas(tokenizer, [*tokenizer.encode("a"), *smile[:kept]])
        assert "".join(shown) == "a\ufffd"
        assert shown[-1] == "\ufffd", "only the end shows that it is broken"


@settings(max_examples=300, deadline=None)
@given(ids=_IDS)
def test_txt_11_every_delta_is_valid_utf8(tokenizer: Tokenizer, ids: list[int]) -> None:
    for delta in deltas(tokenizer, ids)[0]:
        assert delta.encode("utf-8").decode("utf-8") == delta


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        ([""], "empty text"),
        (["x" * 257], "257 characters; at most 256"),
        (["x"] * 17, "at most 16 texts; got 17"),
        (["a\udc80"], "unpaired surrogate"),
    ],
)
def test_bad_stop_texts_are_refused(tokenizer: Tokenizer, stop: list[str], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        AnswerText(tokenizer, stop)
    assert caught.value.field == "stop"


def test_the_largest_stop_texts_are_taken(tokenizer: Tokenizer) -> None:
    stop: list[Any] = [str(number % 10) * (256 - number) for number in range(16)]
    assert AnswerText(tokenizer, stop).stopped is None


@pytest.mark.skipif(os.environ.get("CI") == "true", reason="times the machine")
def test_a_long_answer_costs_no_more_per_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a" * 60_000)
    assert len(ids) == 15_000
    answer = AnswerText(tokenizer, ("a" * 255 + "b",))
    halves = []
    for half in (ids[:7500], ids[7500:]):
        began = time.thread_time()
        for token_id in half:
            answer.push(token_id)
        halves.append(time.thread_time() - began)
    assert halves[1] < 3 * halves[0] + 0.05
