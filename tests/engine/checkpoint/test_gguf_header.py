"""Hostile and broken GGUF headers: refused in one line, soon, in little memory."""

from __future__ import annotations

import random
import resource
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.checkpoint.gguf import open_gguf
from engine.checkpoint.gguf_header import MAX_KEYS, MAX_NUMBERS, MAX_STRINGS, MAX_TENSORS, MAX_TEXT_BYTES, read_header
from engine.errors import CheckpointError, UnsupportedModelError
from tests.gguf_checkpoints import write_tiny_gguf

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def array_file(items: int, kind: int = 8, key: str = "a") -> bytes:
    """A header that claims one array and stops."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(key) + struct.pack("<IIQ", 9, kind, items)


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_sec_01_array_length_of_two_to_the_63_is_refused_at_once(tmp_path: Path) -> None:
    content = array_file(2**63 - 1)
    assert len(content) == 49
    before = time.monotonic()
    assert "9223372036854775807 items" in refusal(tmp_path / "m.gguf", content)
    assert time.monotonic() - before < 0.5


def test_a_header_equals_what_the_reference_reader_sees(tmp_path: Path) -> None:
    same_as_the_reference(write_tiny_gguf(tmp_path / "m.gguf"))


@pytest.mark.slow
def test_the_embedded_header_equals_what_the_reference_reader_sees(embedded_model: Path) -> None:
    same_as_the_reference(embedded_model)


def same_as_the_reference(path: Path) -> None:
    ours, reference = read_header(path), gguf.GGUFReader(path)
    assert ours.metadata.keys() == {key for key in reference.fields if not key.startswith("GGUF.")}
    for key, field in reference.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        if isinstance(value, float):
            assert np.float32(value) == np.float32(field.contents())
        else:
            assert (list(value) if isinstance(value, tuple) else value) == field.contents()
    assert [(t.name, t.type.name, t.shape[::-1], t.offset, t.stored_bytes) for t in ours.tensors] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()), t.data_offset, t.n_bytes) for t in reference.tensors
    ]


@pytest.mark.timeout(60)
def test_promise_17_two_thousand_mutated_headers(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    header_bytes = read_header(tmp_path / "whole.gguf").header_bytes
    path = tmp_path / "mutated.gguf"
    chance = random.Random(17)
    refused, slowest = 0, 0.0
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        path.write_bytes(mutated(whole, header_bytes, chance))
        start = time.monotonic()
        message = outcome(path)
        slowest = max(slowest, time.monotonic() - start)
        refused += message is not None
        assert message is None or ("\n" not in message and len(message) < 500)
    assert slowest < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 512 * 1024
    # The rest changed a word of the vocabulary, or the like.
    assert refused > 500


def test_promise_17_a_header_at_every_cap_is_still_soon_done_and_small(tmp_path: Path) -> None:
    """As many strings and numbers as are read, and as many bytes as no header takes."""
    many = text("a") + struct.pack("<IIQ", 9, 8, MAX_STRINGS) + text("x") * MAX_STRINGS
    many += text("b") + struct.pack("<IIQ", 9, 6, MAX_NUMBERS) + bytes(4 * MAX_NUMBERS)
    (tmp_path / "many.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + many)
    with (tmp_path / "long.gguf").open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 200))
        for _ in range(200):
            file.write(text("x" * MAX_TEXT_BYTES))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, sentence in (("many", "token_embd.weight is missing"), ("long", "a header of more than 67108864 bytes")):
        # Time of this process, so that a busy machine does not count.
        start = time.process_time()
        message = outcome(tmp_path / f"{name}.gguf")
        assert message is not None
        assert sentence in message
        assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 512 * 1024


def outcome(path: Path) -> str | None:
    """The refusal's sentence, or None where the file opens and every tensor can be read."""
    try:
        for _ in open_gguf(path).tensors():
            pass
    except CheckpointError as error:
        return str(error)
    return None


def mutated(whole: bytes, header_bytes: int, chance: random.Random) -> bytes:
    """One to three faults in the header: bits, integers, cuts, repeats."""
    content = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        # Half of the faults go to the front, where the counts and the sizes of the decoder are.
        at = chance.randrange(4, header_bytes if chance.random() < 0.5 else 900)
        match chance.randrange(5):
            case 0:
                content[at] ^= 1 << chance.randrange(8)
            case 1:
                content[at : at + 8] = struct.pack("<Q", chance.choice(INTERESTING))
            case 2:
                content[at : at + 4] = struct.pack("<I", chance.choice(INTERESTING) & 0xFFFFFFFF)
            case 3:
                del content[at : at + chance.randint(1, 64)]
            case _:
                content[at:at] = content[at : at + chance.randint(1, 64)]
    return bytes(content[: chance.randrange(header_bytes)] if chance.random() < 0.1 else content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "too few"),
        (b"GGUF", "too few"),
        (b"PK\3\4" + bytes(40), "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, MAX_TENSORS + 1, 0), "65537 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, MAX_KEYS + 1), "4097 keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "bytes for a key"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IQ", 8, MAX_TEXT_BYTES + 1), "at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a\nb") + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("a") + struct.pack("<IB", 0, 1)) * 2, "twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20), "not UTF-8"),
        (array_file(MAX_STRINGS + 1), "items"),
        (array_file(MAX_NUMBERS + 1, kind=4), "items"),
        (array_file(1000), "ends inside"),
        (array_file(1000, kind=4), "ends inside"),
        (array_file(1, kind=9), "nests an array"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 5), "5 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 10, 0), "type Q2_K"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 0, 0), "32 bytes at"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 0, 8), "no multiple of 32"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 8, 0), "multiples of 32"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 0, 0, 0), "shape"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQQQQIQ", 4, *[2**63] * 4, 0, 0),
            "the file has",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 2, 0)
            + b"".join(text(name) + struct.pack("<IQIQ", 1, 8, 0, 0) for name in "tu")
            + bytes(200),
            "overlap",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "token_embd.weight is missing"),
    ],
)
def test_promise_17_a_fault_is_named_in_one_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    assert sentence in refusal(tmp_path / "m.gguf", content)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ({"llama.block_count": 2**31}, "llama.block_count is 2147483648"),
        ({"llama.block_count": 3}, "model.layers.2.input_layernorm.weight and 8 more is missing"),
        ({"llama.block_count": 1}, "no part of a llama decoder uses the tensor 'model.layers.1."),
        ({"llama.embedding_length": 128}, "has the shape"),
        ({"llama.feed_forward_length": 64}, "asks for"),
        ({"llama.attention.head_count_kv": 3}, "do not divide evenly"),
        ({"llama.context_length": 2**31}, "llama.context_length"),
        ({"llama.rope.dimension_count": 8}, "differs from the head size"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
    ],
)
def test_sizes_that_do_not_fit_the_tensors_are_refused_before_any_is_read(
    tmp_path: Path, override: dict[str, int], sentence: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_gguf(write_tiny_gguf(tmp_path / "m.gguf", integers=override))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_architecture_is_unsupported_by_name(tmp_path: Path) -> None:
    content = write_tiny_gguf(tmp_path / "m.gguf").read_bytes().replace(text("llama"), text("gemma"))
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="'gemma' is not served from GGUF; served are llama, qwen2, qwen3"):
        open_gguf(tmp_path / "m.gguf")
