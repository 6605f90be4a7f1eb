"""`soloist gateway`: serve the OpenAI API and a chat page in front of servers. Every flag is a setting."""

from __future__ import annotations

import argparse
import logging

from service.cli.errors import CommandError, UsageError
from service.ops.logs import set_up_logs
from service.settings import SettingsError, add_gateway_flags, load_gateway_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and --config."""
    parser.epilog = (
        "Flags come before SOLOIST_GATEWAY_* environment variables, and these before the file of --config. SIGTERM "
        "leaves in order; Ctrl-C does so without waiting for balancers; each further signal ends the present phase."
    )
    add_gateway_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to leave. Exit codes: 0 left in order, 1 could not start."""
    try:
        from service.gateway.serving import CannotStartError, run_gateway
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise CommandError(f"{error.name} is not installed; pip install 'soloist[gateway]'") from None
    try:
        settings = load_gateway_settings(vars(arguments))
    except SettingsError as error:
        raise UsageError(str(error)) from None
    handler = set_up_logs(settings.log_level, settings.log_format)
    web = logging.getLogger("uvicorn")
    web.handlers[:] = [handler]
    web.setLevel(logging.WARNING)
    web.propagate = False
    try:
        return run_gateway(settings)
    except CannotStartError as error:
        raise CommandError(str(error)) from None
    finally:
        logging.shutdown()
