"""`soloist bench tune`: kernel settings for this device, searched in the decode step, as the tuning table's entries."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.bench import flags
from service.cli.bench.report import report

if TYPE_CHECKING:
    from engine.bench.tune import TuneResult

HEADS = ("model", "layers", "us before", "us after", "faster", "tried", "refused", "search")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist bench tune`."""
    flags.add_models(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument(
        "--precision", choices=("auto", "bfloat16", "float16"), default="auto", help="default: bfloat16"
    )
    flags.add_count(parser, "--seconds", 180, "most seconds that the search of one model takes")
    parser.add_argument("--long", action="store_true", help="look at attention over 4096 tokens too")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the entries there")


def run(arguments: argparse.Namespace) -> int:
    """Tune for every model, print the table, the entries, then one line of JSON."""
    # These import torch.
    from engine.bench.opening import device_facts
    from engine.bench.tune import TuneCase, entries, tune

    cases = [
        TuneCase(model, arguments.device, arguments.precision, arguments.seconds, arguments.long)
        for model in arguments.model
    ]
    results: list[TuneResult] = []
    for case in cases:
        print(f"tuning for {case.model} ...", file=sys.stderr, flush=True)
        results.append(tune(case))
        print(entries(results[-1]), file=sys.stderr, flush=True)
    text = "\n".join(entries(result) for result in results)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    facts = device_facts(arguments.device, None)
    report("tune", facts, HEADS, [_row(result) for result in results], [text], results=[*map(_document, results)])
    return 0


def _row(result: TuneResult) -> tuple[str, ...]:
    return (
        result.model,
        str(result.layers),
        f"{result.before_s * 1e6:.1f}",
        f"{result.after_s * 1e6:.1f}",
        f"{result.before_s / result.after_s:.3f} x",
        str(len(result.tried)),
        str(sum(tried.seconds is None for tried in result.tried)),
        "complete" if result.complete else "out of time",
    )


def _document(result: TuneResult) -> dict[str, Any]:
    """As JSON has it: keys of tables are words."""
    return {
        **{field.name: getattr(result, field.name) for field in dataclasses.fields(result)},
        "tried": [dataclasses.asdict(tried) for tried in result.tried],
        "rows": {" ".join(map(str, key)): dataclasses.asdict(setting) for key, setting in result.rows.items()},
        "attend": {" ".join(map(str, key)): dataclasses.asdict(setting) for key, setting in result.attend.items()},
    }
