"""`soloist bench peers`: others on the same weights in the same run, round by round."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import sys
from typing import TYPE_CHECKING

from service.cli.bench import flags
from service.cli.bench.report import count, milliseconds, report, share

if TYPE_CHECKING:
    from engine.bench.peers import PeerName, PeerResult

HEADS = (
    "model",
    "type",
    "player",
    "kernels",
    "ms/token",
    "best",
    "tokens/s",
    "soloist is",
    "same answers",
    "kernels/step",
    "idle",
    "CPU ms",
)
NAMES = {
    "soloist": "soloist",
    "eager": "transformers, eager",
    "compiled": "transformers, static + compile",
    "llama.cpp": "llama.cpp",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist bench peers`."""
    flags.add_models(parser)
    flags.add_engine(parser)
    flags.add_count(parser, "--prompt-tokens", 32, "tokens of the prompt")
    flags.add_count(parser, "--new-tokens", 64, "tokens of the answer")
    flags.add_count(parser, "--rounds", 5, "turns of each player, by turns; the median counts")
    parser.add_argument(
        "--compiled",
        action=argparse.BooleanOptionalAction,
        help="transformers with a static cache and torch.compile (default: on CUDA alone, where it takes a minute)",
    )
    parser.add_argument(
        "--llamacpp",
        action="store_true",
        help="llama.cpp through the package xllamacpp, where the model is a GGUF file",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure every model, print the table, then one line of JSON."""
    # These import torch.
    from engine.bench.opening import Setup, device_facts, torch_device
    from engine.bench.peers import PeersCase, compare, context_for, require

    on_cuda = torch_device(arguments.device).type == "cuda"
    compiled = on_cuda if arguments.compiled is None else arguments.compiled
    peers: list[PeerName] = ["eager"]
    if compiled:
        peers.append("compiled")
    if arguments.llamacpp:
        peers.append("llama.cpp")
    require(peers)
    cases = [
        PeersCase(
            Setup(
                model=model,
                context=context_for(arguments.prompt_tokens, arguments.new_tokens),
                device=arguments.device,
                precision=precision,
                kernels=kernels,
                threads=arguments.threads,
            ),
            tuple(peers),
            arguments.prompt_tokens,
            arguments.new_tokens,
            arguments.rounds,
        )
        for model in arguments.model
        for precision in arguments.precision
        for kernels in arguments.kernels
    ]
    facts = device_facts(arguments.device, arguments.threads)
    results: list[PeerResult] = []
    for case in cases:
        print(f"measuring {case.setup.model} ...", file=sys.stderr, flush=True)
        results += compare(case)
    packages = ("transformers", *(["xllamacpp"] if arguments.llamacpp else []))
    versions = {package: importlib.metadata.version(package) for package in packages}
    report(
        "peers",
        facts,
        HEADS,
        [_row(result) for result in results],
        [", ".join(f"{name} {version}" for name, version in versions.items()), *map(_parting, _partings(results))],
        versions=versions,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        results=[{**dataclasses.asdict(r), "tokens_per_s": 1 / r.seconds_per_token} for r in results],
    )
    return 0


def _row(result: PeerResult) -> tuple[str, ...]:
    same = "-" if result.answers_equal is None else f"{result.answers_equal} of {result.rounds}"
    ours = result.player == "soloist"
    return (
        result.model,
        result.precision,
        NAMES[result.player],
        result.kernels or "-",
        milliseconds(result.seconds_per_token),
        milliseconds(result.least_seconds_per_token),
        f"{1 / result.seconds_per_token:.1f}",
        "-" if ours else f"{result.ours_is_faster:.2f} x",
        "-" if ours else same,
        count(result.kernels_per_step),
        share(result.idle_share),
        milliseconds(result.cpu_seconds_per_token),
    )


def _partings(results: list[PeerResult]) -> list[PeerResult]:
    return [result for result in results if any(at is not None for at in result.first_difference)]


def _parting(result: PeerResult) -> str:
    at = ", ".join("none" if at is None else str(at) for at in result.first_difference)
    return f"{result.model}, {NAMES[result.player]}: first token that differs from ours, by round: {at}"
