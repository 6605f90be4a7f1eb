"""`soloist serve | gateway | chat | demo | keys | bench | cost`: reads the command line and runs one subcommand.

Only the module of the subcommand asked for is imported, so that `soloist chat` starts without torch or the server.

Exit codes: 0 done, 1 failed, 2 wrongly asked, 130 interrupted; `serve` adds its own (see ARCHITECTURE.md).
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
_INTERRUPTED_LINE = "soloist: interrupted before it had begun\n"

try:  # what follows takes a moment, and Ctrl-C may come in it as well as later
    import argparse
    import errno
    import importlib
    import os
    from collections.abc import Callable, Sequence
    from importlib import metadata
    from pathlib import Path
    from typing import Protocol, cast

    from engine.errors import EngineError, InvalidRequestError
    from service.cli.errors import CommandError
    from service.cli.parser import CommandParser
except KeyboardInterrupt:
    sys.stderr.write(_INTERRUPTED_LINE)
    sys.exit(INTERRUPTED)

# gRPC's C library writes lines of its own to stderr, between our one line for a person or our JSON for a log reader. It
# says nothing there that its statuses do not say. An operator who wants them may set the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# name -> (module, one line of help). The module offers `add_arguments(parser)` and `run(arguments) -> int`.
SUBCOMMANDS = {
    "serve": ("service.cli.serve", "run the chat server"),
    "chat": ("service.cli.chat", "talk to a running server from the terminal"),
    "demo": ("service.cli.demo", "start a server on the embedded model and ask it one question"),
    "gateway": ("service.cli.gateway", "serve the OpenAI API and a chat page in front of servers"),
    "keys": ("service.cli.keys", "make and hash API keys"),
    "bench": ("service.cli.bench", "measure how fast this machine decodes"),
    "cost": ("service.cli.cost", "count what a traffic costs on GPUs of your own, at Bedrock and on Fargate"),
}


class Subcommand(Protocol):
    """What the module of a subcommand offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the process's exit code. Only --help and --version leave by SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    subcommand = None
    try:
        parser, subcommand = _parser(words)
        arguments = parser.parse_args(words)
        if subcommand is None:
            parser.print_help(sys.stderr)
            return 2
        return subcommand.run(arguments)
    except CommandError as error:
        _complain(str(error))
        return error.exit_code
    except EngineError as error:
        _complain(str(error))
        return 2 if isinstance(error, InvalidRequestError) else 1
    except KeyboardInterrupt:
        if subcommand is None:
            sys.stderr.write(_INTERRUPTED_LINE)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`soloist chat | head`). Python would complain once more when it flushes at
        # exit, so what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _complain("standard output: no space left on the device")
        return 1


def _open_closed_streams() -> None:
    """Where a caller closed standard streams (`<&-`), nothing comes in and output goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def _parser(words: Sequence[str]) -> tuple[argparse.ArgumentParser, Subcommand | None]:
    """The parser for `words`, with the arguments of the one subcommand that they name."""
    parser = CommandParser(
        prog="soloist",
        description="A chat service for people who wait for the next word: every token is one CUDA graph replay.",
    )
    parser.add_argument("--version", action="version", version=f"soloist {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    # The options before the command take no values, so the first word that is no option is the command.
    wanted = next((word for word in words if not word.startswith("-")), None)
    chosen: Subcommand | None = None
    for name, (module, line) in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if name == wanted:
            chosen = cast("Subcommand", importlib.import_module(module))
            chosen.add_arguments(subparser)
    return parser, chosen


def _version() -> str:
    try:
        return metadata.version("soloist")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _complain(message: str) -> None:
    # A message may quote a model file or a server: it gets no control over the terminal, and stays one line.
    line = " ".join(message.split())
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    sys.stderr.write(f"soloist: {printable}\n")


if __name__ == "__main__":
    sys.exit(main())
