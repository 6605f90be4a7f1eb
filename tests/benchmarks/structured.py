"""What holding an answer to a form costs a decode step.

    python -m tests.benchmarks.structured llama-3.1-8b --device cuda --tokens 400

A free sampled turn, a free greedy one and one held to a JSON schema play in turns on the same engine, with random
weights for a shape, or a checkpoint's. The vocabulary is the embedded model's, made as wide as the model's by joining
tokens. Random words are the worst case for a grammar: no two strings are alike. Printed are medians of the time between
two tokens, the work on the host alone, and the overhead over the free sampled turn; last line JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from itertools import pairwise
from typing import cast

import numpy as np

from engine.bench.opening import Setup, opened, round_context
from engine.checkpoint import open_checkpoint
from engine.engine import Engine
from engine.outputs import Token
from engine.params import SamplingParams
from engine.text import AnswerForm, Tokenizer, build_chat_text
from engine.text.grammar import Grammar, Grammars

PROMPT = list(range(10, 42))
ROUNDS = 3
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "mail": {"type": "string", "pattern": "^[a-z]{1,20}@[a-z]{1,20}\\.org$"},
    },
    "required": ["name", "age", "tags", "mail"],
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": _PERSON, "minItems": 100_000})


class WideTokenizer:
    """A real tokenizer's ids, and pairs of them up to any vocabulary."""

    def __init__(self, narrow: Tokenizer, vocabulary: int) -> None:
        self._narrow = narrow
        self.vocabulary = vocabulary
        self.control_ids = narrow.control_ids
        self.strips_first_space = False

    def token_bytes(self, token_id: int) -> bytes:
        count = self._narrow.vocabulary
        if token_id < count:
            return self._narrow.token_bytes(token_id)
        left, right = (token_id * 7919) % count, (token_id * 104_729) % count
        return self._narrow.token_bytes(left) + self._narrow.token_bytes(right)

    def encode(self, text: str) -> list[int]:
        return self._narrow.encode(text)


def grammar_of(vocabulary: int) -> Grammar:
    """The schema's grammar for that many ids."""
    checkpoint = open_checkpoint("embedded")
    text = build_chat_text(checkpoint.tokenizer, checkpoint.chat_template, checkpoint.defaults.eos_ids)
    wide = WideTokenizer(text.tokenizer, vocabulary)
    started_s = time.perf_counter()
    grammars = Grammars(cast("Tokenizer", wide), text.end_ids)
    grammar = grammars.compile(AnswerForm.json_schema(SCHEMA))
    print(f"tables of {vocabulary} ids and the first form: {time.perf_counter() - started_s:.2f} s")
    started_s = time.perf_counter()
    grammars.compile(AnswerForm.json_schema(SCHEMA.replace("blue", "black")))
    print(f"another form: {(time.perf_counter() - started_s) * 1e3:.1f} ms")
    return grammar


def played(engine: Engine, params: SamplingParams) -> tuple[list[int], list[float]]:
    """A turn's ids, and the seconds between two of them."""
    context = engine.open_context()
    ids, at = [], []
    try:
        with closing(engine.generate(context, PROMPT, params)) as turn:
            for step in turn:
                if isinstance(step, Token):
                    ids.append(step.token_id)
                    at.append(time.perf_counter())
    finally:
        context.close()
    return ids, [later - earlier for earlier, later in pairwise(at)]


def on_host(grammar: Grammar, ids: list[int]) -> list[float]:
    """Seconds of each mask and the acceptance after it, nothing else running."""
    state, row, seconds = grammar.begin(), np.zeros(grammar.words, dtype="<u4"), []
    for token_id in ids:
        started_s = time.perf_counter()
        state.write_mask(row.ctypes.data)
        state.accept(token_id)
        seconds.append(time.perf_counter() - started_s)
    return seconds


def main() -> None:
    """Measure as the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint, or the name of a shape with random weights")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    context = round_context(len(PROMPT) + arguments.tokens)
    setup = Setup(arguments.model, context, device=arguments.device, graph_stages=("greedy", "sampled"))
    with opened(setup) as engine:
        grammar = grammar_of(engine.info.architecture.vocabulary)
        sampled = {"temperature": 1.0, "max_tokens": arguments.tokens}
        turns = {
            "greedy": SamplingParams(max_tokens=arguments.tokens),
            "sampled": SamplingParams(**sampled),
            "form": SamplingParams(**sampled, grammar=grammar),
        }
        gaps: dict[str, list[float]] = {name: [] for name in turns}
        ids: list[int] = []
        for number in range(ROUNDS + 1):
            for name, params in turns.items():
                made, between = played(engine, params)
                gaps[name] += between if number else []  # the first round warms up
                ids = made
        host = on_host(grammar, ids)
        device, captured = engine.info.device, engine.graphs.captured
    medians = {name: statistics.median(seconds) * 1e3 for name, seconds in gaps.items()}
    means = {name: statistics.fmean(seconds) * 1e3 for name, seconds in gaps.items()}
    figures = {
        "model": arguments.model,
        "device": device,
        "graphs": captured,
        "tokens": arguments.tokens,
        "median_ms": medians,
        "mean_ms": means,
        "least_ms": {name: min(seconds) * 1e3 for name, seconds in gaps.items()},
        "host_us": {
            "mean": statistics.fmean(host) * 1e6,
            "median": statistics.median(host) * 1e6,
            "p99": sorted(host)[int(len(host) * 0.99)] * 1e6,
        },
        "overhead_median": medians["form"] / medians["sampled"] - 1.0,
        "overhead_mean": means["form"] / means["sampled"] - 1.0,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
