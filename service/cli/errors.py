"""How a command says that it cannot go on: one line for the person, one exit code for the script."""

from __future__ import annotations


class CommandError(Exception):
    """The command was understood and failed. Its text is the one line that a person reads."""

    exit_code = 1


class UsageError(CommandError):
    """What was typed is wrong; the same command will never work."""

    exit_code = 2
