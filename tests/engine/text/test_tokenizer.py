"""Ids of strings: exact against llama.cpp, against the library's own objects, and never a control token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from engine.errors import InvalidRequestError
from engine.text import Tokenizer
from engine.text.source import GgufTokenizer

_DATA = Path(__file__).parent / "data" / "smollm2_ids.json"
_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def by_library(embedded_source: GgufTokenizer) -> tokenizers.Tokenizer:
    """The same tables in the library's ready-made parts: digits split singly, then GPT-2's own splitting."""
    vocab = {token: token_id for token_id, token in enumerate(embedded_source.tokens)}
    made = tokenizers.Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in embedded_source.merges]))  # type: ignore[misc]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made


def test_txt_06_a_thousand_strings_have_the_ids_of_llama_cpp(tokenizer: Tokenizer) -> None:
    strings = json.loads(_DATA.read_text())["strings"]
    assert len(strings) >= 1000
    wrong = [(text, ids, got) for text, ids in strings if (got := tokenizer.encode(text)) != ids]
    assert wrong == []


def test_txt_06_digits_after_spaces_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("  7") == [256, 39]


@settings(max_examples=300, deadline=None)
@given(text=_TEXT)
def test_any_text_has_the_ids_of_the_librarys_own_parts(
    tokenizer: Tokenizer, by_library: tokenizers.Tokenizer, text: str
) -> None:
    assert tokenizer.encode(text) == by_library.encode(text).ids


@settings(max_examples=300, deadline=None)
@given(text=_TEXT)
def test_decode_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    known = {tokenizer.token_bytes(token_id) for token_id in range(300)}
    # The model has no token for a few bytes (most control characters, F1 and up); it never sees them.
    kept = bytes(byte for byte in text.encode() if bytes((byte,)) in known)
    assert tokenizer.decode(tokenizer.encode(text)) == kept.decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(17, 49151), max_size=40))
def test_decode_of_any_ids_is_the_librarys(
    tokenizer: Tokenizer, by_library: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == by_library.decode(ids)


def test_promise_18_control_strings_are_ordinary_text(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.control_strings) == 17
    for text in tokenizer.control_strings:
        for around in (text, f"a{text}b", f" {text} ", text * 3, text[:-1] + "\u200b" + text[-1]):
            ids = tokenizer.encode(around)
            assert tokenizer.control_ids.isdisjoint(ids)
            assert tokenizer.decode(ids) == around


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_promise_18_no_mixture_of_pieces_makes_a_control_token(tokenizer: Tokenizer, data: st.DataObject) -> None:
    pieces = [piece for text in tokenizer.control_strings for piece in (text, text[:4], text[4:])]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | st.text(max_size=2), max_size=12)))
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        return
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode(text))


def test_control_tokens_decode_to_nothing(tokenizer: Tokenizer) -> None:
    hello = tokenizer.encode("hello")
    assert tokenizer.decode([1, *hello, 2, 0]) == "hello"


def test_ids_beyond_the_vocabulary_decode_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary == 49152
    assert tokenizer.token_bytes(tokenizer.vocabulary) == b""
    assert tokenizer.token_bytes(-1) == b""


@pytest.mark.parametrize("text", ["a\udc80b", "\ud83d", b"caf\xe9".decode("utf-8", "surrogateescape")])
def test_txt_11_unpaired_surrogates_are_refused_in_a_sentence(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="unpaired surrogate U\\+D") as caught:
        tokenizer.encode(text, "prompt")
    assert caught.value.field == "prompt"
    str(caught.value).encode("utf-8")


def test_a_leaked_marker_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="marker"):
        tokenizer.encode(tokenizer.mark("<|im_start|>"))


def test_a_long_text_costs_time_in_proportion(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("a" * 400_000)) == 100_000


def test_text_needs_no_torch() -> None:
    code = "import sys, engine.text.chat; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cleaning_for_a_terminal_loads_no_tokenizer() -> None:
    code = "import sys, engine.text.terminal; sys.exit('tokenizers' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
