"""Builds the image for CPUs as a user would, from wheels in a folder and a stand-in for its base image.

There is no registry of images here. The base is a Debian of the same release with its own Python of the same version,
tagged like the real one, and the wheels come from where `pip` gets them, held against the same hashes. What is dear is
kept below .tools/image: the base, the wheels, and the layers' store.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".tools" / "image"
LOCKS = ("image/cpu.txt", "image/model/embedded.txt", "image/build.txt")
COPIED = ("Dockerfile", "pyproject.toml", "README.md", "LICENSE", "engine", "image", "proto", "service")
REPOSITORY = "localhost/soloist"


@dataclass(frozen=True, slots=True)
class Image:
    """A built image, mounted.

    Attributes:
        root: its files; only to be read.
        config: `Env`, `Entrypoint`, `Cmd`, `User` and the rest of its configuration.
    """

    root: Path
    config: dict[str, Any]


@contextmanager
def built_image() -> Iterator[Image]:
    """Build the image, unless it was built of these very files before, and mount it for as long as it is used."""
    base = base_name()
    KEPT.mkdir(parents=True, exist_ok=True)
    if not _buildah("images", "--quiet", "--filter", f"reference={base}"):
        _import_base(base)
    tag = f"{REPOSITORY}:{_copied_digest()}"
    if not _buildah("images", "--quiet", "--filter", f"reference={tag}"):
        _build(base, tag)
    container = _buildah("from", "--pull=never", tag)
    try:
        described = json.loads(_buildah("inspect", "--type", "image", tag))
        yield Image(Path(_buildah("mount", container)), described["OCIv1"]["config"])
    finally:
        _buildah("rm", container)


def _build(base: str, tag: str) -> None:
    for old in _buildah("images", "--quiet", "--filter", f"reference={REPOSITORY}").split():
        _buildah("rmi", "--force", old)
    _buildah(
        *("bud", "--isolation", "chroot", "--pull=never", "--layers=false"),
        *("--build-context", f"wheels={_wheels()}", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", f"PYTHON={base}"),
        *("--tag", tag, str(ROOT)),
    )


def _copied_digest() -> str:
    """Of all that the build reads from this project."""
    digest = hashlib.sha256()
    for place in COPIED:
        paths = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*"))
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_mode}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def base_name() -> str:
    """The base that the Dockerfile names, without the digest that no stand-in can have."""
    found = re.search(r"^ARG PYTHON=([^@\s]+)@sha256:[0-9a-f]{64}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _import_base(name: str) -> None:
    archive = KEPT / "base.tar"
    if not archive.exists():
        packages = "python3,python3-pip,python3-venv"
        made = archive.with_suffix(".new.tar")
        _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", str(made))
        made.replace(archive)
    container = _buildah("from", "scratch")
    _buildah("add", "--quiet", container, str(archive), "/")
    # Where the official image has its interpreter.
    _buildah("run", "--isolation", "chroot", container, "--", "ln", "-s", "/usr/bin/python3", "/usr/local/bin/python")
    _buildah("commit", "--quiet", "--rm", container, name)


def _wheels() -> Path:
    """A folder with every wheel of the locks."""
    digest = hashlib.sha256(b"".join((ROOT / lock).read_bytes() for lock in LOCKS)).hexdigest()[:16]
    wheels = KEPT / f"wheels-{digest}"
    if not wheels.exists():
        for old in KEPT.glob("wheels-*"):
            shutil.rmtree(old)
        making = KEPT / "wheels.new"
        shutil.rmtree(making, ignore_errors=True)
        names = [part for lock in LOCKS for part in ("--requirement", str(ROOT / lock))]
        _run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
            *("--require-hashes", "--only-binary", ":all:", "--dest", str(making), *names),
        )
        making.rename(wheels)
    return wheels


def _buildah(*arguments: str, check: bool = True) -> str:
    store = KEPT / "store"
    return _run("buildah", "--root", str(store), "--runroot", str(KEPT / "run"), *arguments, check=check)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command[:4]} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout.strip()
