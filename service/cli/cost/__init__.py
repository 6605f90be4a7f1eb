"""`soloist cost`: what a traffic costs on GPU nodes of one's own, beside Bedrock and Fargate. No network, no torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from service.cli.cost.bill import Traffic
from service.cli.cost.curve import draw, require_curve
from service.cli.cost.idle import SHAPES
from service.cli.cost.prices import DEFAULT_PRICES, PriceFileError, read_prices
from service.cli.cost.report import Question, answer, picture, text
from service.cli.cost.speed import MEASURED
from service.cli.errors import CommandError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist cost`."""
    parser.epilog = (
        "Speeds are derived from what was measured on an H200; --tokens-per-second takes your own measurement."
    )
    asked = parser.add_argument_group("what is asked")
    _number(asked, "--answers-per-day", 200, "on a day on which GPUs run")
    _number(asked, "--tokens-per-answer", 300, "tokens of one answer")
    _number(asked, "--prompt-tokens", 500, "tokens of one prompt, as far as no session holds them already")
    _number(asked, "--hours", 24, "hours a day that GPUs run; the nights are off")
    _number(asked, "--days-per-week", 7, "days that they do")
    _number(asked, "--peak", 2, "answers in the busiest hour over those in the mean one")
    _number(asked, "--most-busy", 0.7, "share of a GPU's time that the busiest hour may take")
    own = parser.add_argument_group("what answers")
    own.add_argument("--model", choices=list(MEASURED), default="llama-3.1-8b", help="default: %(default)s")
    own.add_argument("--model-bytes", type=float, metavar="N", help="bytes of weights that a token reads, in its place")
    own.add_argument(
        "--tokens-per-second", type=float, metavar="N", help="measured by `soloist bench` on that instance"
    )
    own.add_argument("--instance", action="append", metavar="TYPE", help="of the file of prices; may be repeated")
    own.add_argument("--platform", choices=(*SHAPES, "none"), default="dev", help="cluster that is counted in")
    prices = parser.add_argument_group("prices and output")
    prices.add_argument(
        "--prices", type=Path, default=DEFAULT_PRICES, metavar="FILE", help=f"YAML like {DEFAULT_PRICES}"
    )
    prices.add_argument(
        "--bedrock",
        metavar="MODEL",
        help="hosted model of the file to compare with, or none (default: --model's, if there is one)",
    )
    prices.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    prices.add_argument("--plot", type=Path, metavar="FILE", help="draw dollars over traffic as a PNG or SVG")


def run(arguments: argparse.Namespace) -> int:
    """Answer what `arguments` ask; 0 when done."""
    if arguments.plot is not None:
        require_curve(arguments.plot)
    question = _question(arguments)
    found = answer(question)
    if arguments.plot is not None:
        try:
            draw(arguments.plot, [picture(question)])
        except OSError as error:
            raise CommandError(f"{arguments.plot}: {error.strerror}") from None
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(text(question, found))
    return 0


def _question(arguments: argparse.Namespace) -> Question:
    """What was asked, checked."""
    bounds = {
        "answers_per_day": (0, 1e8), "tokens_per_answer": (1, 1e6), "prompt_tokens": (0, 1e7), "hours": (0.25, 24),
        "days_per_week": (1, 7), "peak": (1, 24), "most_busy": (0.05, 1), "model_bytes": (1e6, 1e12),
        "tokens_per_second": (0.01, 1e6),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        value = getattr(arguments, name)
        if value is not None and not least <= value <= most:
            raise UsageError(f"--{name.replace('_', '-')} must be from {least:,g} to {most:,g}, not {value:g}")
    try:
        prices = read_prices(arguments.prices)
    except PriceFileError as error:
        raise UsageError(f"--prices: {error}") from None
    for name in arguments.instance or ():
        if name not in prices.instances:
            raise UsageError(f"--instance: {name!r} is not in the prices; there are {', '.join(prices.instances)}")
    if arguments.tokens_per_second is not None and len(arguments.instance or ()) != 1:
        raise UsageError("--tokens-per-second belongs to one instance type; name it with --instance")
    model = arguments.model if arguments.model_bytes is None else None
    hosted = arguments.bedrock or (model if model in prices.bedrock else "none")
    if hosted not in (*prices.bedrock, "none"):
        raise UsageError(f"--bedrock: {hosted!r} is not in the prices; there are {', '.join(prices.bedrock)}, none")
    traffic = Traffic(
        answers_per_day=arguments.answers_per_day,
        tokens_per_answer=arguments.tokens_per_answer,
        prompt_tokens=arguments.prompt_tokens,
        hours_per_day=arguments.hours,
        days_per_week=arguments.days_per_week,
        peak=arguments.peak,
        most_busy=arguments.most_busy,
    )
    question = Question(
        prices=prices,
        traffic=traffic,
        model=model,
        bytes_per_token=arguments.model_bytes or MEASURED[arguments.model].bytes_per_token,
        tokens_per_s=arguments.tokens_per_second,
        wanted=tuple(arguments.instance or ()),
        platform=arguments.platform,
        bedrock=None if hosted == "none" else hosted,
    )
    if not question.instances:
        raise UsageError(
            f"a model that reads {question.bytes_per_token / 1e9:.1f} GB for a token fits on no GPU of "
            f"{', '.join(question.wanted or prices.instances)}: one model is played by one GPU"
        )
    return question


def _number(group: argparse._ArgumentGroup, flag: str, default: float, what: str) -> None:
    group.add_argument(flag, type=float, default=default, metavar="N", help=f"{what} (default: {default:g})")
