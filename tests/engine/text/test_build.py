"""Tokenizers from GGUF tables and from tokenizer.json, the odd ones included."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from engine.errors import CheckpointError, UnsupportedModelError
from engine.text import build_chat_text
from engine.text.build import build_tokenizer
from engine.text.pretokenizers import PRE_TOKENIZERS
from engine.text.source import GgufTokenizer, JsonTokenizer
from tests.engine.text.reference import reference_tokenizer

_WORDS = [
    *"▁abcdefghilmnorstuwy,.",
    *("▁a", "▁t", "in", "he", "▁the", "er", "on", "▁s", "▁w", "at", "or", "ell", "▁h", "▁he", "▁hell", "▁hello"),
    *("▁world", "ll", "lo", "el", "llo", "wor", "ld", "▁wor", "rld", "orl", "▁▁", "▁▁▁", "th", "the"),
]


def sentencepiece(**changes: Any) -> GgufTokenizer:
    """A small SentencePiece table: unknown, BOS, EOS, 256 bytes, and pieces scored by their order."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
    types = [2, 3, 3, *[6] * 256, *[1] * len(_WORDS)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(_WORDS))]
    source = GgufTokenizer("llama", None, tuple(tokens), (), tuple(scores), tuple(types), 1, 2, 0, None, None)
    return dataclasses.replace(source, **changes)


def merged_slowly(source: GgufTokenizer, text: str) -> list[int]:
    """SentencePiece as its paper has it: merge the best-scored neighbours, leftmost first; the rest falls to bytes."""
    ids = {token: i for i, token in enumerate(source.tokens) if source.token_types[i] == 1}
    parts = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        best = max(
            (
                (source.scores[ids[left + right]], -place)
                for place, (left, right) in enumerate(itertools.pairwise(parts))
                if left + right in ids
            ),
            default=None,
        )
        if best is None:
            break
        parts[-best[1] : 2 - best[1]] = ["".join(parts[-best[1] : 2 - best[1]])]
    return [i for part in parts for i in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="abcdefghilmnorstuwy ,.é한🙂\n", max_size=30))
def test_sentencepiece_tables_merge_by_score_and_fall_back_to_bytes(text: str) -> None:
    source = sentencepiece()
    tokenizer = build_tokenizer(source)
    ids = tokenizer.encode(text)
    assert ids == merged_slowly(source, text)
    assert tokenizer.decode(ids) == text


def test_sentencepiece_control_and_byte_tokens_never_come_from_text() -> None:
    tokenizer = build_tokenizer(sentencepiece())
    for text in ("<s>", "</s>", "<unk>", "<0x41>"):
        ids = tokenizer.encode(text)
        assert tokenizer.control_ids.isdisjoint(ids)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode_marked(tokenizer.mark("<s>hello</s>")) == [1, *tokenizer.encode("hello"), 2]


def test_sentencepiece_without_space_prefix() -> None:
    tokenizer = build_tokenizer(sentencepiece(add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


@pytest.mark.parametrize(("add_bos", "expected"), [(None, True), (True, True), (False, False)])
def test_sentencepiece_has_a_bos_unless_the_file_says_no(add_bos: bool | None, expected: bool) -> None:
    assert build_tokenizer(sentencepiece(add_bos=add_bos)).add_bos is expected


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_loses_nothing(embedded_source: GgufTokenizer, name: str) -> None:
    tokenizer = build_tokenizer(dataclasses.replace(embedded_source, pre=name))
    for text in (
        "Don't STOP  now 12345, ok?\r\n\n\tdef f(x): return x**2 ",
        "한국어 日本語 ÉCOLE école 👩‍👩‍👧 $1,000.50 ½",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("smollm", "a  12", ["a", "  ", "1", "2"]),
        ("gpt-2", "a  12", ["a", " ", " 12"]),
        ("llama-bpe", "It'S 12345!\n\nx", ["It", "'S", " ", "123", "45", "!\n\n", "x"]),
        ("qwen2", "It'S 123!\n\nx", ["It", "'S", " ", "1", "2", "3", "!\n\n", "x"]),
        ("tekken", "camelCase 12/x", ["camel", "Case", " ", "1", "2", "/x"]),
        ("gpt-4o", "don't 1234", ["don't", " ", "123", "4"]),
        ("deepseek-llm", "ab 中文1", ["ab", " ", "中文", "1"]),
        ("deepseek-v3", "中文 1234", ["中文", " ", "123", "4"]),
        ("default", "a=b 1234", ["a", "=", "b", " ", "123", "4"]),
    ],
)
def test_words_are_cut_as_the_name_says(name: str, text: str, words: list[str]) -> None:
    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


def test_txt_06_other_pre_tokenizers_have_the_ids_of_llama_cpp(embedded_source: GgufTokenizer) -> None:
    data = json.loads((Path(__file__).parent / "data" / "pre_tokenizers.json").read_text())
    for name, rows in data["ids"].items():
        tokenizer = build_tokenizer(dataclasses.replace(embedded_source, pre=name))
        assert [tokenizer.encode(text) for text in data["strings"]] == rows, name


def test_txt_06_an_unknown_pre_tokenizer_is_named_and_the_known_are_listed(embedded_source: GgufTokenizer) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'novel'.*known:.*qwen2.*smollm"):
        build_tokenizer(dataclasses.replace(embedded_source, pre="novel"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"token_types": (1, 2)}, "types 2 of its"),
        ({"eos_id": 10**6}, "names 1000000 as a special token"),
        ({"scores": ()}, "scores 0 of its"),
    ],
)
def test_unsound_tables_are_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        build_tokenizer(sentencepiece(**changes))


def test_merges_of_tokens_that_do_not_exist_are_refused(embedded_source: GgufTokenizer) -> None:
    with pytest.raises(CheckpointError, match="cannot be used"):
        build_tokenizer(dataclasses.replace(embedded_source, merges=("nosuch token",)))


def test_control_tokens_that_a_converter_forgot_to_mark(embedded_source: GgufTokenizer) -> None:
    types = (1,) * len(embedded_source.tokens)
    tokenizer = build_tokenizer(dataclasses.replace(embedded_source, token_types=types))
    assert {0, 1, 2} <= tokenizer.control_ids
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode("<|im_start|><|im_end|><|endoftext|>"))


def test_merges_cannot_build_a_control_token() -> None:
    tokens = ("<", "x", ">", "<x", "<x>", "a")
    source = GgufTokenizer(
        "gpt2", "llama-bpe", tokens, ("< x", "<x >"), (), (1, 1, 1, 1, 3, 1), None, 4, None, None, None
    )
    tokenizer = build_tokenizer(source)
    assert tokenizer.encode("<x>a") == [3, 2, 5]
    assert tokenizer.encode_marked(tokenizer.mark("<x>a")) == [4, 5]


_ADDED = [
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("<|user|>", special=True, normalized=False, rstrip=True),
    AddedToken("    ", special=False, normalized=False),
    AddedToken("ø", special=False, normalized=True),
]


def test_json_harmless_text_has_the_ids_of_transformers(json_source: Callable[..., JsonTokenizer]) -> None:
    source = json_source(_ADDED)
    reference = reference_tokenizer(str(source.path))
    tokenizer = build_tokenizer(source)
    for text in ("the cat sat", "x = 1\n        return ø", "Was 42?  안녕", "", " "):
        ids = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_json_marked_text_has_the_ids_of_transformers(json_source: Callable[..., JsonTokenizer]) -> None:
    source = json_source(_ADDED)
    reference = reference_tokenizer(str(source.path))
    tokenizer = build_tokenizer(source)
    for text in ("<|im_start|>user\nhi<|im_end|>", "<|user|> \n hello <think> x", "<|im_start|><|im_start|>"):
        assert tokenizer.encode_marked(tokenizer.mark(text)) == reference.encode(text, add_special_tokens=False)


def test_promise_18_added_markup_is_ordinary_text_too(json_source: Callable[..., JsonTokenizer]) -> None:
    tokenizer = build_tokenizer(json_source(_ADDED))
    for text in ("<think>", "<|user|>", "<|im_end|>"):
        assert tokenizer.control_ids.isdisjoint(tokenizer.encode(f"a {text} b"))
    think = tokenizer.control_strings["<think>"]
    assert tokenizer.decode([think]) == "<think>", "not special: an answer shows it"


def test_json_tokens_that_only_the_config_lists(json_source: Callable[..., JsonTokenizer]) -> None:
    source = json_source(added_tokens_decoder={"400": {"content": "<|tool|>", "special": True}})
    tokenizer = build_tokenizer(source)
    assert tokenizer.vocabulary == 401
    assert tokenizer.encode_marked(tokenizer.mark("<|tool|>")) == [400]


def test_json_sentencepiece_style(tmp_path: Path) -> None:
    model = build_tokenizer(sentencepiece())
    path = tmp_path / "tokenizer.json"
    data = json.loads(model._backend.to_str())
    names = {token["content"]: text for token in data["added_tokens"] for text in [sentencepiece().tokens[token["id"]]]}
    for token in data["added_tokens"]:
        token["content"] = names[token["content"]]
    data["model"]["vocab"] = {names.get(text, text): token_id for text, token_id in data["model"]["vocab"].items()}
    data["model"]["unk_token"] = "<unk>"
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    path.write_text(json.dumps(data))
    tokenizer = build_tokenizer(JsonTokenizer(path, {"bos_token": "<s>"}))
    reference = reference_tokenizer(str(path))
    for text in ("hello world", "the 한 🙂", "  two"):
        ids = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.bos_id == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read"),
        ('{"model": {"type": "Unigram", "vocab": []}}', "is a Unigram; only BPE"),
        ('{"model": {"type": "BPE"}}', "cannot be used"),
    ],
)
def test_an_unusable_json_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=sentence):
        build_chat_text(JsonTokenizer(tmp_path / "tokenizer.json", {}), None)
