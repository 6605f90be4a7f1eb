"""The command line: `python3 -m terraform.bootstrap up` and `down`, from the repository's folder."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from terraform.bootstrap.commands import BootstrapError, Commands
from terraform.bootstrap.down import down
from terraform.bootstrap.facts import Roots
from terraform.bootstrap.inputs import check
from terraform.bootstrap.signals import SignalledError, raised
from terraform.bootstrap.up import up

TERRAFORM = Path(__file__).parents[1]
# A flag of `up` to the release that its files are values of.
OWN_VALUES = {
    "--values": "soloist",
    "--nodes-values": "soloist-nodes",
    "--monitoring-values": "kube-prometheus-stack",
}


def parser() -> argparse.ArgumentParser:
    """What may be asked."""
    whole = argparse.ArgumentParser(prog="python3 -m terraform.bootstrap", description=__doc__)
    ways = whole.add_subparsers(dest="way", required=True)
    rising = ways.add_parser("up", help="install or upgrade all that the cluster runs, from what Terraform applied")
    for flag, chart in OWN_VALUES.items():
        rising.add_argument(flag, type=Path, action="append", default=[], help=f"values for {chart}; repeatable")
    falling = ways.add_parser("down", help="empty the cluster, then destroy both roots")
    falling.add_argument("--yes", action="store_true", help="destroy it all; what was measured goes too")
    falling.add_argument(
        "--data",
        action="store_true",
        help="and the models in the bucket, and the images; with destroy_data = true in the variables they go anyway",
    )
    for root in ("cluster", "platform"):
        falling.add_argument(
            f"--{root}-vars", type=Path, action="append", default=[],
            help=f"file of variables that {root} was applied with, beside its terraform.tfvars; repeatable",
        )  # fmt: skip
    for way in (rising, falling):
        way.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
        for root in ("cluster", "platform"):
            way.add_argument(f"--{root}", type=Path, default=TERRAFORM / root, help=f"folder of the root {root}")
    return whole


def _given(asked: argparse.Namespace) -> tuple[dict[str, Path], dict[str, list[Path]]]:
    """Folders and files, by their flags."""
    flags = {"up": ("values", "nodes_values"), "down": ("cluster_vars", "platform_vars")}[asked.way]
    files = {f"--{flag.replace('_', '-')}": getattr(asked, flag) for flag in flags}
    return {"--cluster": asked.cluster, "--platform": asked.platform}, files


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 wrongly asked, 128 and a signal's number where that ended it."""
    asked = parser().parse_args(arguments)
    if asked.way == "down" and not (asked.yes or asked.dry_run):
        print("down destroys the cluster and all in it: look with --dry-run, then say --yes", file=sys.stderr)
        return 2
    commands = Commands(dry_run=asked.dry_run)
    try:
        with raised(), tempfile.TemporaryDirectory() as scratch:
            check(*_given(asked))
            if asked.way == "up":
                own_values = {chart: getattr(asked, flag[2:].replace("-", "_")) for flag, chart in OWN_VALUES.items()}
                up(commands, Roots(asked.cluster, asked.platform), own_values, Path(scratch))
            else:
                variables = tuple(asked.cluster_vars), tuple(asked.platform_vars)
                down(commands, Roots(asked.cluster, asked.platform, *variables), Path(scratch), data=asked.data)
    except BootstrapError as error:
        print(f"{asked.way}: {error}", file=sys.stderr)
        return 1
    except SignalledError as told:
        print(f"{asked.way}: ended by {told}; the command that ran was ended before", file=sys.stderr)
        return 128 + told.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
