"""`soloist bench decode`: milliseconds a token, eager and as a graph, and the share of the memory's read bandwidth."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from typing import TYPE_CHECKING, Any

from engine.bench.shapes import SHAPES
from service.cli.bench.table import table

if TYPE_CHECKING:
    from engine.bench.case import DecodeResult, DeviceFacts

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
    parser.add_argument(
        "--model",
        nargs="+",
        default=["embedded"],
        metavar="MODEL",
        help="`embedded`, a GGUF file, a folder, a hub id, or a shape with random weights: "
        f"{', '.join(SHAPES)} (default: embedded)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("auto", "float32", "bfloat16", "float16"),
        default=["auto"],
        help="default: float32 on the CPU, bfloat16 on CUDA",
    )
    parser.add_argument(
        "--kernels",
        nargs="+",
        choices=("auto", "plain", "fused"),
        default=["auto"],
        help="default: fused ones on CUDA in half precision, else plain torch",
    )
    parser.add_argument("--prompt-tokens", type=int, default=32, metavar="N", help="default: %(default)s")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens that a session may hold (default: what the run needs)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: the cgroup's quota)")
    parser.add_argument(
        "--turns", type=int, default=3, metavar="N", help="timed turns; the median counts (default: %(default)s)"
    )
    parser.add_argument("--no-eager", action="store_true", help="on CUDA, leave out the eager run of the same step")


def run(arguments: argparse.Namespace) -> int:
    """Measure every model in every precision, print the table, then one line of JSON."""
    # These import torch.
    from engine.bench.case import DecodeCase, device_facts, measure_case

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
    facts = device_facts(arguments.device, arguments.threads)
    results: list[DecodeResult] = []
    for case in cases:
        print(f"measuring {case.model} ...", file=sys.stderr, flush=True)
        results += measure_case(case)
    print(f"{facts.name}, reads {facts.read_bytes_per_s / 1e9:.1f} GB/s ({facts.reader}, this run)")
    print(table(HEADS, [_row(result, facts) for result in results]))
    print(json.dumps(_document(arguments, facts, results)))
    return 0


def _row(result: DecodeResult, facts: DeviceFacts) -> tuple[str, ...]:
    return (
        result.model,
        result.precision,
        result.kernels,
        result.step,
        f"{result.seconds_per_token * 1e3:.3f}",
        f"{1 / result.seconds_per_token:.1f}",
        f"{result.bytes_per_token / 1e6:.1f}",
        f"{result.bytes_per_s / 1e9:.1f}",
        f"{result.bytes_per_s / facts.read_bytes_per_s:.1%}",
        "-" if result.kernels_per_step is None else f"{result.kernels_per_step:.0f}",
        "-" if result.idle_share is None else f"{result.idle_share:.1%}",
        f"{result.cpu_seconds_per_token * 1e3:.3f}",
    )


def _document(arguments: argparse.Namespace, facts: DeviceFacts, results: list[DecodeResult]) -> dict[str, Any]:
    return {
        "measurement": "decode",
        "python": platform.python_version(),
        "device": dataclasses.asdict(facts),
        "prompt_tokens": arguments.prompt_tokens,
        "new_tokens": arguments.new_tokens,
        "results": [
            {
                **dataclasses.asdict(result),
                "tokens_per_s": 1 / result.seconds_per_token,
                "bytes_per_s": result.bytes_per_s,
                "share_of_read_bandwidth": result.bytes_per_s / facts.read_bytes_per_s,
            }
            for result in results
        ],
    }
