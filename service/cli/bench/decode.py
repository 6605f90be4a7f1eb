"""`soloist bench decode`: milliseconds a token, eager and as a graph, and the share of the memory's read bandwidth."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.bench import flags
from service.cli.bench.plot import draw, require_plot
from service.cli.bench.report import count, milliseconds, report, share

if TYPE_CHECKING:
    from engine.bench.case import DecodeResult
    from engine.bench.opening import DeviceFacts

HEADS = (
    "model",
    "type",
    "kernels",
    "step",
    "ms/token",
    "tokens/s",
    "MB/token",
    "GB/s",
    "share",
    "kernels/step",
    "idle",
    "CPU ms",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist bench decode`."""
    flags.add_models(parser)
    flags.add_engine(parser)
    flags.add_count(parser, "--prompt-tokens", 32, "tokens of the prompt")
    flags.add_count(parser, "--new-tokens", 128, "tokens of the answer")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens that a session may hold (default: what the run needs)"
    )
    flags.add_count(parser, "--turns", 3, "timed turns; the median counts")
    parser.add_argument("--no-eager", action="store_true", help="on CUDA, leave out the eager run of the same step")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="also draw each row's share of the read bandwidth"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure every model in every precision, print the table, then one line of JSON."""
    # These import torch.
    from engine.bench.case import DecodeCase, measure_case
    from engine.bench.opening import device_facts

    cases = [
        DecodeCase(
            model=model,
            device=arguments.device,
            precision=precision,
            kernels=kernels,
            prompt_tokens=arguments.prompt_tokens,
            new_tokens=arguments.new_tokens,
            context=arguments.context,
            threads=arguments.threads,
            turns=arguments.turns,
            eager_too=not arguments.no_eager,
        )
        for model in arguments.model
        for precision in arguments.precision
        for kernels in arguments.kernels
    ]
    if arguments.plot is not None:
        require_plot(arguments.plot)
    facts = device_facts(arguments.device, arguments.threads)
    results: list[DecodeResult] = []
    for case in cases:
        print(f"measuring {case.model} ...", file=sys.stderr, flush=True)
        results += measure_case(case)
    shares = [result.bytes_per_s / facts.read_bytes_per_s for result in results]
    if arguments.plot is not None:
        draw(arguments.plot, facts.name, [(_label(result), s) for result, s in zip(results, shares, strict=True)])
    report(
        "decode",
        facts,
        HEADS,
        [_row(result, facts) for result in results],
        (),
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        results=[
            {
                **dataclasses.asdict(result),
                "tokens_per_s": 1 / result.seconds_per_token,
                "bytes_per_s": result.bytes_per_s,
                "share_of_read_bandwidth": share_read,
            }
            for result, share_read in zip(results, shares, strict=True)
        ],
    )
    return 0


def _label(result: DecodeResult) -> str:
    return f"{result.model}\n{result.precision}, {result.kernels}, {result.step}"


def _row(result: DecodeResult, facts: DeviceFacts) -> tuple[str, ...]:
    return (
        result.model,
        result.precision,
        result.kernels,
        result.step,
        milliseconds(result.seconds_per_token),
        f"{1 / result.seconds_per_token:.1f}",
        f"{result.bytes_per_token / 1e6:.1f}",
        f"{result.bytes_per_s / 1e9:.1f}",
        share(result.bytes_per_s / facts.read_bytes_per_s),
        count(result.kernels_per_step),
        share(result.idle_share),
        milliseconds(result.cpu_seconds_per_token),
    )
