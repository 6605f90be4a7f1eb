"""The project's own files, for tests that read them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def project_files() -> list[Path]:
    """Every file that git holds or would take; all files where this is no git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file()]
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def python_modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """(path below the root, syntax tree) of every hand-written Python file in these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield str(path.relative_to(ROOT)), _parsed(path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


@cache
def imported_names(module: ast.Module) -> set[str]:
    """Every module that is imported, wherever in the file, and every `module.name` of a from-import."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def files_that_import(package: str, *folders: str) -> list[str]:
    """The files in these folders that import `package` or something of it."""
    return [
        path
        for path, module in python_modules(*folders)
        if any(name == package or name.startswith(package + ".") for name in imported_names(module))
    ]
