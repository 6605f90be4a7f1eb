"""Tokenizers built from what a checkpoint holds: the tables of a GGUF file, or a `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from engine.errors import CheckpointError, UnsupportedModelError
from engine.text.pieces import Pieces, Spelling, lone_byte
from engine.text.pretokenizers import pre_tokenizer_named
from engine.text.source import GgufTokenizer, JsonTokenizer, TokenizerSource
from engine.text.tokenizer import ControlToken, Sentinels, Tokenizer, added_token, looks_like_markup

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "\u2581"
# Files converted carelessly mark these as normal tokens; no ordinary word looks so.
_CERTAINLY_CONTROL = re.compile(r"<[|｜][^<>\s]*[|｜]>")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def build_tokenizer(source: TokenizerSource) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises CheckpointError where its tables are unsound or of an unserved kind."""
    try:
        return _from_gguf(source) if isinstance(source, GgufTokenizer) else _from_json(source)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception for tables it cannot use
        raise CheckpointError(f"the tokenizer of this checkpoint cannot be used: {error}") from error


def _from_gguf(source: GgufTokenizer) -> Tokenizer:
    if source.model not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {source.model!r}; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)"
        )
    sentencepiece = source.model == "llama"
    sentinels = Sentinels()
    controls, literal = _gguf_controls(source)
    vocab = dict(zip(source.tokens, range(len(source.tokens)), strict=True))
    for token_id, control in controls.items():
        vocab.pop(control.text, None)
        vocab[sentinels.name(token_id)] = token_id
    if sentencepiece:
        add_bos, prefix = _default(source.add_bos, True), _default(source.add_space_prefix, True)
        unk = None if source.unk_id is None else sentinels.name(source.unk_id)
        merges = _merges_from_scores(source)
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token=unk))
        spaces = normalizers.Replace(" ", _SPACE)
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    else:
        words = pre_tokenizer_named(source.pre)
        add_bos, prefix = _default(source.add_bos, words.add_bos), False
        merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in source.merges)]
        controlled = {control.text for control in controls.values()}
        model = models.BPE(vocab, _possible(merges, controlled), ignore_merges=words.ignore_merges)
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = words.build()
    backend.add_tokens([AddedToken(source.tokens[token_id], normalized=False) for token_id in literal - set(controls)])
    backend.add_special_tokens(
        [AddedToken(sentinels.name(token_id), normalized=False, special=True) for token_id in controls]
    )
    named = {"bos": source.bos_id, "eos": source.eos_id, "unk": source.unk_id, "pad": source.pad_id}
    return Tokenizer(
        backend,
        Pieces(
            lambda token_id: source.tokens[token_id] if token_id < len(source.tokens) else None,
            len(source.tokens),
            Spelling.SENTENCEPIECE if sentencepiece else Spelling.BYTE_LEVEL,
            literal=literal,
            hidden=[control.token_id for control in controls.values() if control.hidden],
            strips_first_space=sentencepiece and prefix,
        ),
        controls.values(),
        sentinels,
        bos_id=source.bos_id,
        add_bos=add_bos and source.bos_id is not None,
        special_text={f"{name}_token": source.tokens[i] for name, i in named.items() if i is not None},
    )


def _gguf_controls(source: GgufTokenizer) -> tuple[dict[int, ControlToken], set[int]]:
    """The control tokens by id, and the ids of all added tokens, control or not."""
    count = len(source.tokens)
    types = source.token_types or (_NORMAL,) * count
    if len(types) != count:
        raise CheckpointError(f"the GGUF file types {len(types)} of its {count} tokens; it must type each")
    special = {i for i in (source.bos_id, source.eos_id, source.unk_id, source.pad_id) if i is not None}
    if wrong := sorted(i for i in special if not 0 <= i < count):
        raise CheckpointError(f"the GGUF file names {wrong[0]} as a special token; it has {count} tokens")
    # One cheap pass each: the vocabulary is large and this runs at every start.
    literal = {token_id for token_id, kind in enumerate(types) if kind not in (_NORMAL, _BYTE)} | special
    unmarked = {
        token_id
        for token_id, text in enumerate(source.tokens)
        if text[:1] == "<" and text[-1:] == ">" and _CERTAINLY_CONTROL.fullmatch(text)
    }
    literal = {token_id for token_id in literal | unmarked if source.tokens[token_id]}
    controls = {}
    for token_id in sorted(literal):
        text, kind = source.tokens[token_id], types[token_id]
        hidden = kind in (_UNKNOWN, _CONTROL) or token_id in special or token_id in unmarked
        if hidden or looks_like_markup(text):
            controls[token_id] = ControlToken(token_id, text, hidden)
    return controls, literal


def _merges_from_scores(source: GgufTokenizer) -> list[tuple[str, str]]:
    """The merges that SentencePiece's scores imply: a pair may merge where the whole is a token, best score first."""
    if len(source.scores) != len(source.tokens):
        raise CheckpointError(
            f"the GGUF file scores {len(source.scores)} of its {len(source.tokens)} tokens; it must score each"
        )
    types = source.token_types or (_NORMAL,) * len(source.tokens)
    ids = {
        text: token_id
        for token_id, (text, kind) in enumerate(zip(source.tokens, types, strict=True))
        if kind == _NORMAL and lone_byte(text) is None
    }
    merges = []
    for text, token_id in ids.items():
        score = source.scores[token_id]
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                merges.append((-score, left, right))
    merges.sort()
    tokens = source.tokens
    return [(tokens[left], tokens[right]) for _, left, right in merges]


def _possible(merges: Sequence[tuple[str, str]], removed: set[str]) -> Sequence[tuple[str, str]]:
    """The merges without those that need or make a control token under its own name."""
    impossible = {
        merge for merge in merges if merge[0] in removed or merge[1] in removed or merge[0] + merge[1] in removed
    }
    return [merge for merge in merges if merge not in impossible] if impossible else merges


def _from_json(source: JsonTokenizer) -> Tokenizer:
    try:
        data = json.loads(source.path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source.path} cannot be read as a tokenizer.json: {error}") from error
    model = data.get("model") or {}
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedModelError(f"{source.path}: the tokenizer is a {model.get('type')}; only BPE is served")
    sentinels = Sentinels()
    entries = _added_entries(data, source.config)
    controls = [
        ControlToken(
            token_id,
            entry["content"],
            hidden=bool(entry.get("special")),
            strips_left=bool(entry.get("lstrip")),
            strips_right=bool(entry.get("rstrip")),
            normalized=bool(entry.get("normalized")),
        )
        for token_id, entry in entries.items()
        if entry["content"] and (entry.get("special") or looks_like_markup(entry["content"]))
    ]
    renamed = {control.text: sentinels.name(control.token_id) for control in controls}
    vocab: dict[str, int] = model["vocab"]
    for control in controls:
        vocab.pop(control.text, None)
        vocab[renamed[control.text]] = control.token_id
    ordinary = [{**entry, "id": token_id} for token_id, entry in entries.items() if entry["content"] not in renamed]
    vocab.update((entry["content"], entry["id"]) for entry in ordinary)
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    merges = [(left, right) for left, right in pairs]
    model["merges"] = _possible(merges, set(renamed))
    if (unk := model.get("unk_token")) in renamed:
        model["unk_token"] = renamed[unk]
    model["dropout"] = None
    data["added_tokens"] = sorted(
        [*ordinary, *(added_token(control, sentinels) for control in controls)], key=lambda entry: entry["id"]
    )
    data.update(post_processor=None, truncation=None, padding=None)
    backend = tokenizers.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    spelling, strips = _spelling(source, data.get("decoder"))
    originals = {control.token_id: control.text for control in controls}
    special_text = _special_text(source.config)
    ids = {entry["content"]: token_id for token_id, entry in entries.items()}
    return Tokenizer(
        backend,
        Pieces(
            lambda token_id: originals.get(token_id) or backend.id_to_token(token_id),
            max(vocab.values(), default=-1) + 1,
            spelling,
            literal=(),  # the library spells added tokens out like all others, and so do we
            hidden=[control.token_id for control in controls if control.hidden],
            strips_first_space=strips,
        ),
        controls,
        sentinels,
        bos_id=ids.get(special_text.get("bos_token", "")),
        add_bos=False,  # as the reference: where the template writes no BOS, the model's authors wanted none
        special_text=special_text,
    )


def _added_entries(data: Mapping[str, Any], config: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Added tokens by id: those of `tokenizer.json`, and those that only `tokenizer_config.json` lists."""
    entries = {entry["id"]: dict(entry) for entry in data.get("added_tokens") or ()}
    for token_id, entry in (config.get("added_tokens_decoder") or {}).items():
        entries.setdefault(int(token_id), dict(entry))
    return entries


def _special_text(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that `tokenizer_config.json` names; an entry is the text, or an object that holds it."""
    found = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _spelling(source: JsonTokenizer, decoder: Mapping[str, Any] | None) -> tuple[Spelling, bool]:
    """How a `tokenizer.json` turns tokens into text, and whether it strips a first space."""
    if decoder is None:
        return Spelling.WORDS, True
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL, False
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        strips = any(
            (step["type"] == "Strip" and step.get("start", 0) > 0)
            or (
                step["type"] == "Metaspace"
                and step.get("prepend_scheme", "always") != "never"
                and step.get("add_prefix_space", True)
            )
            for step in steps
        )
        return Spelling.SENTENCEPIECE, strips
    raise UnsupportedModelError(
        f"{source.path}: the decoder is made of {', '.join(sorted(kinds))}; byte-level and SentencePiece are served"
    )


def _default(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value
