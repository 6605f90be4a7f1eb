"""What is wrong with what was asked, said before anything is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from terraform.bootstrap.commands import BootstrapError

TOOLS = ("terraform", "aws", "kubectl", "helm")


def check(folders: Mapping[str, Path], files: Mapping[str, Iterable[Path]]) -> None:
    """See that each tool can be run and each file read; `folders` and `files` by the flag that names them.

    Raises:
        BootstrapError: one sentence for each that is not so.
    """
    wrong = [f"{tool} is not installed, or not on PATH, or may not be run" for tool in TOOLS if not shutil.which(tool)]
    wrong += [f"{flag} {folder}: no such folder" for flag, folder in folders.items() if not folder.is_dir()]
    for flag, given in files.items():
        for file in given:
            if not file.is_file():
                wrong.append(f"{flag} {file}: no such file")
            elif not os.access(file, os.R_OK):
                wrong.append(f"{flag} {file}: may not be read")
            elif "values" in flag and "," in str(file):
                wrong.append(f"{flag} {file}: helm takes a comma for the end of a file's name; rename it")
    if wrong:
        raise BootstrapError("\n".join(wrong))
