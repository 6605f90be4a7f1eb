"""`soloist bench`: measure what a token costs on this machine. A table for people, then one line of JSON."""

from __future__ import annotations

import argparse

from service.cli.bench import decode, peers, ttft, tune

# name -> (module, one line of help)
MEASUREMENTS = {
    "decode": (decode, "what one decode step costs, eager and as a graph, against the memory's read bandwidth"),
    "ttft": (ttft, "time to the first token: a short turn on a warm session, and a long prompt from empty"),
    "peers": (peers, "transformers, eager and compiled, and llama.cpp on the same weights in the same run"),
    "tune": (tune, "kernel settings for this CUDA device, as entries of the tuning table"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The measurements, each with its own flags."""
    kinds = parser.add_subparsers(title="measurements", metavar="MEASUREMENT", required=True)
    for name, (module, line) in MEASUREMENTS.items():
        own = kinds.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        module.add_arguments(own)
        own.set_defaults(measure=module.run)


def run(arguments: argparse.Namespace) -> int:
    """Run the measurement asked for."""
    return int(arguments.measure(arguments))
