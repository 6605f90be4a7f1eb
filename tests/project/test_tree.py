"""Rules about the files themselves that no linter knows."""

from __future__ import annotations

import ast
import re
from importlib import metadata

import pytest

from tests.project.tree import ROOT, dotted_name, files_that_import, imported_names, project_files, python_modules

BINARY_SUFFIXES = {".binpb", ".png", ".gguf", ".safetensors"}
# Written in pieces, so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + "home/[a-z]+/", "/" + "Users/"]))


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        if path.suffix not in BINARY_SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_environment_is_read_in_one_file() -> None:
    readers = {
        path
        for path, module in python_modules("engine", "service")
        for node in ast.walk(module)
        if _reads_environment(node) and not _is_written(node, module)
    }
    assert readers == {"service/settings.py"}


def test_one_file_knows_the_metrics_library() -> None:
    assert len(files_that_import("prometheus_client", "engine", "service")) == 1


def test_at_most_one_file_knows_the_cluster() -> None:
    assert len(files_that_import("kubernetes", "engine", "service")) <= 1


@pytest.mark.parametrize("package", ["pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"])
def test_promise_14_nothing_unpickles(package: str) -> None:
    assert not files_that_import(package, "engine", "service")


def test_promise_14_no_torch_load_and_no_remote_code() -> None:
    found = []
    for path, module in python_modules("engine", "service", "tests"):
        if "torch.load" in imported_names(module):
            found.append(f"{path}: from torch import load")
        for node in ast.walk(module):
            if dotted_name(node) in {"torch.load", "pickle.load", "pickle.loads"}:
                found.append(f"{path}: {dotted_name(node)}")
            refused = (
                isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.value.value is False
            )
            if isinstance(node, ast.keyword) and node.arg in {"trust_remote_code", "allow_pickle"} and not refused:
                found.append(f"{path}:{node.value.lineno}: {node.arg}")
    assert not found, "\n".join(found)


def test_promise_15_templates_are_rendered_in_one_place() -> None:
    runners = {"root_render_func", "render", "render_async", "generate", "generate_async", "make_module", "from_string"}
    users = files_that_import("jinja2", "engine", "service")
    assert all(path.startswith("engine/text/") for path in users)
    places = [
        f"{path}: {node.attr}"
        for path, module in python_modules("engine", "service")
        if path in users
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr in runners
    ]
    assert places == ["engine/text/template.py: root_render_func"]


def test_promise_15_every_environment_is_the_immutable_sandbox() -> None:
    environments = {
        name
        for _, module in python_modules("engine", "service")
        for name in imported_names(module)
        if name.startswith("jinja2.") and name.endswith(("Environment", "Template"))
    }
    assert environments == {"jinja2.sandbox.ImmutableSandboxedEnvironment"}


def test_promise_15_jinja_is_new_enough() -> None:
    installed = tuple(int(part) for part in metadata.version("jinja2").split(".")[:3])
    assert installed >= (3, 1, 6)


def _reads_environment(node: ast.AST) -> bool:
    return dotted_name(node) in {"os.environ", "os.getenv", "os.environb"}


def _is_written(environment: ast.AST, module: ast.Module) -> bool:
    """Whether this mention of os.environ only sets a variable, for a library that reads it, or passes it to a child."""
    for node in ast.walk(module):
        if isinstance(node, ast.Subscript) and node.value is environment:
            return isinstance(node.ctx, ast.Store)
        if isinstance(node, ast.Attribute) and node.value is environment:
            return node.attr == "setdefault"
    return False
