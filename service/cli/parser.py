"""An argument parser that answers a mistake in one line, and a misspelt flag with the nearest one that exists."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from service.cli.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Takes flags only as they are spelt. Parsers of its subcommands are of this class too, each with its own flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in argparse, but what is left over is refused here, where its neighbours are known.

        Raises:
            UsageError: the one line about the mistake.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._about(unknown))
        return found, []

    def error(self, message: str) -> NoReturn:
        """Raise the mistake instead of printing the whole usage over it."""
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def _about(self, unknown: Sequence[str]) -> str:
        word = unknown[0].split("=", 1)[0]
        if not word.startswith("-"):
            return f"unexpected word {word!r}"
        close = difflib.get_close_matches(word, self._option_string_actions, n=1)
        return f"unknown flag {word}{f', did you mean {close[0]}?' if close else ''}"
