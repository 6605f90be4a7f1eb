"""`soloist bench ttft`: milliseconds to the first token, and how many decode steps that is."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from itertools import groupby
from typing import TYPE_CHECKING

from service.cli.bench import flags
from service.cli.bench.report import count, milliseconds, report, share

if TYPE_CHECKING:
    from engine.bench.ttft import TtftResult

HEADS = (
    "model",
    "type",
    "kernels",
    "held",
    "new",
    "ms to first",
    "slowest",
    "ms/step",
    "steps",
    "prefill chunks",
    "launched",
    "idle",
    "CPU ms",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist bench ttft`."""
    flags.add_models(parser)
    flags.add_engine(parser)
    flags.add_count(parser, "--new-turn-tokens", 32, "tokens of a new turn on a warm session")
    flags.add_count(parser, "--warm-tokens", 4096, "tokens that the warm session holds; 0 leaves it out")
    flags.add_count(parser, "--prompt-tokens", 2048, "tokens of a prompt from empty; 0 leaves it out")
    flags.add_count(parser, "--turns", 7, "timed turns; the median counts")
    parser.add_argument(
        "--prefill-chunk", nargs="+", type=int, default=[512], metavar="N", help="tokens prefilled at once, at most"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure every model, print the table, then one line of JSON."""
    # These import torch.
    from engine.bench.opening import device_facts
    from engine.bench.ttft import TtftCase, measure_ttft

    cases = [
        TtftCase(
            model=model,
            device=arguments.device,
            precision=precision,
            kernels=kernels,
            new_turn_tokens=arguments.new_turn_tokens,
            warm_tokens=arguments.warm_tokens,
            prompt_tokens=arguments.prompt_tokens,
            prefill_chunk=chunk,
            threads=arguments.threads,
            turns=arguments.turns,
        )
        for model in arguments.model
        for precision in arguments.precision
        for kernels in arguments.kernels
        for chunk in arguments.prefill_chunk
    ]
    facts = device_facts(arguments.device, arguments.threads)
    results: list[TtftResult] = []
    for case in cases:
        print(f"measuring {case.model} ...", file=sys.stderr, flush=True)
        results += measure_ttft(case)
    report(
        "ttft",
        facts,
        HEADS,
        [_row(result) for result in results],
        (),
        results=[{**dataclasses.asdict(result), "in_steps": result.in_steps} for result in results],
    )
    return 0


def _row(result: TtftResult) -> tuple[str, ...]:
    return (
        result.model,
        result.precision,
        result.kernels_kind,
        str(result.held_tokens),
        str(result.new_tokens),
        milliseconds(result.seconds),
        milliseconds(result.most_seconds),
        milliseconds(result.step_seconds),
        f"{result.in_steps:.2f}",
        _chunks(result),
        count(result.kernels),
        share(result.idle_share),
        milliseconds(result.cpu_seconds),
    )


def _chunks(result: TtftResult) -> str:
    """`3 x prefill_r512, 480 eager`: graphs by name, and chunks that had none by their tokens."""
    names = [chunk.graph or f"{chunk.tokens} eager" for chunk in result.chunks]
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    return ", ".join(name if times == 1 else f"{times} x {name}" for name, times in runs) or "none"
