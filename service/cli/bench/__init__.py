"""`soloist bench`: measure what a token costs on this machine. A table for people, then one line of JSON."""

from __future__ import annotations

import argparse

from service.cli.bench import decode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The measurements, each with its own flags."""
    kinds = parser.add_subparsers(title="measurements", metavar="MEASUREMENT", required=True)
    parser_of_decode = kinds.add_parser(
        "decode",
        help="what one decode step costs, eager and as a graph, against the memory's read bandwidth",
    )
    decode.add_arguments(parser_of_decode)
    parser_of_decode.set_defaults(measure=decode.run)


def run(arguments: argparse.Namespace) -> int:
    """Run the measurement asked for."""
    return int(arguments.measure(arguments))
