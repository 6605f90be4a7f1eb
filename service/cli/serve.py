"""`soloist serve`: run the chat server. Every flag is a setting; see service.settings."""

from __future__ import annotations

import argparse

from service.cli.errors import UsageError
from service.process import run_server
from service.settings import SettingsError, add_flags, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and --config."""
    parser.epilog = (
        "Flags come before SOLOIST_* environment variables, and these before the file of --config. SIGTERM drains in "
        "order; Ctrl-C does so without waiting for balancers; each further signal ends the present phase."
    )
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to leave. Exit codes: 0 drained, 1 could not start, 3 lost its engine."""
    try:
        settings = load_settings(vars(arguments))
    except SettingsError as error:
        raise UsageError(str(error)) from None
    return run_server(settings)
