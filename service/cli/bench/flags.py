"""Flags that several measurements share."""

from __future__ import annotations

import argparse

from engine.bench.shapes import SHAPES


def add_models(parser: argparse.ArgumentParser) -> None:
    """`--model`, one or more."""
    parser.add_argument(
        "--model",
        nargs="+",
        default=["embedded"],
        metavar="MODEL",
        help="`embedded`, a GGUF file, a folder, a hub id, or a shape with random weights: "
        f"{', '.join(SHAPES)} (default: embedded)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--device`, `--precision`, `--kernels`, `--threads`: how the engine is opened."""
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
        choices=("auto", "plain", "fused", "quantised"),
        default=["auto"],
        help="default: fused on CUDA in half precision, quantised on the CPU for Q4_0, Q4_1 and Q8_0, else plain torch",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: the cgroup's quota)")


def add_count(parser: argparse.ArgumentParser, flag: str, default: int, what: str) -> None:
    """A flag that takes a number."""
    parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{what} (default: %(default)s)")
